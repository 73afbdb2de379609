"""Who is calling, and what they may do: users, credentials, access rules and the decisions about them."""
