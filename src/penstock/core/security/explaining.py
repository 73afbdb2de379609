"""A decision about access as a sentence."""

from penstock.core.security.access import Access, Caller, Decision, Principal
from penstock.core.security.acls import check_principal
from penstock.operations.access import EVERY_USER, ROLE, WILDCARD, AccessAnswer, Cause, Pattern, Permission, Rule
from penstock.operations.operation import Action, Resource
from penstock.types import Gateway

_KINDS = {Resource.TRANSACTIONAL_ID: "transactional id", Resource.DELEGATION_TOKEN: "delegation token"}


def explained(access: Access, caller: Caller, action: Action, resource: Resource, name: str) -> AccessAnswer:
    """Whether the caller may do this, and what decides."""
    decision = access.decide(caller, action, resource, name)
    verb = "may" if decision.allowed else "may not"
    sentence = (
        f"{caller.principal} {verb} {words(action)} {named(resource, name)}: {_because(decision, action, caller)}."
    )
    return AccessAnswer(decision.allowed, decision.cause, sentence, decision.rule)


def worker_refusal(access: Access, principal: str, topic: str, group: str) -> str | None:
    """Why a principal may not work a queue; None if it may, as far as is known without the groups that its token claims."""
    check_principal(principal)
    caller = Caller(Principal(principal), Gateway.KAFKA)
    for resource, name in ((Resource.TOPIC, topic), (Resource.GROUP, group)):
        answer = explained(access, caller, Action.READ, resource, name)
        if not answer.allowed:
            return f"{answer.sentence} Allow it with: penstock acl allow {principal} read {resource.value}:{name}"
    return None


def words(action: Action) -> str:
    """An action in a sentence."""
    return "do anything to" if action is Action.ALL else action.value.replace("_", " ")


def named(resource: Resource, name: str) -> str:
    """A resource in a sentence."""
    if resource is Resource.CLUSTER:
        return "the cluster"
    return f"{_KINDS.get(resource, resource.value)} {name}"


def _because(decision: Decision, action: Action, caller: Caller) -> str:
    rule = decision.rule
    if rule is not None:
        implied = "" if rule.action in (action, Action.ALL) else f", which includes {words(action)}"
        return f"{_spoken(rule)}{implied}{_through(rule, caller)}"
    return {
        Cause.OFF: "authentication is off, so everyone may do everything",
        Cause.BROKER: "it is the broker itself",
        Cause.SUPER_USER: "it is a super user",
        Cause.NOT_LOADED: "the access rules could not be read, so only super users may do anything",
    }.get(decision.cause, "no rule allows it")


def _spoken(rule: Rule) -> str:
    verb = "allows" if rule.permission is Permission.ALLOW else "denies"
    action = "everything" if rule.action is Action.ALL else words(rule.action)
    where = "" if rule.host == WILDCARD else f" from {rule.host}"
    return f'the rule "{rule}" {verb} {action} on {_covered(rule)}{where}'


def _covered(rule: Rule) -> str:
    if rule.resource is Resource.CLUSTER:
        return "the cluster"
    kind = _KINDS.get(rule.resource, rule.resource.value)
    if rule.pattern is Pattern.PREFIXED:
        return f"every {kind} whose name begins with {rule.name}"
    return f"every {kind}" if rule.name == WILDCARD else f"{kind} {rule.name}"


def _through(rule: Rule, caller: Caller) -> str:
    if rule.principal == caller.principal:
        return ""
    if rule.principal == EVERY_USER:
        return " to every user"
    return f", and {caller.principal} {'has this role' if rule.principal.startswith(ROLE) else 'is in this group'}"
