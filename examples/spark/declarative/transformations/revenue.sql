-- What each customer has spent, computed from all orders in every run.
CREATE MATERIALIZED VIEW revenue AS
SELECT customer, count(*) AS orders, round(sum(total), 2) AS total
FROM orders
GROUP BY customer;
