//! `keycloak_role_check`: roles in tokens of Keycloak.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_config::Node;
use weir_plugin::{CompileCx, HookCx, Invalid, RequestCx};

use super::checks::Resource;
use super::{DraftLink, read};
use crate::auth::openid_connect::jose::Claims;
use crate::threescale::errors::Refusal;
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Policy, Step};
use crate::threescale::state::State;
use crate::threescale::text::{Around, Text, TextType};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Conf {
    scopes: Vec<ScopeConf>,
    #[serde(rename = "type")]
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// Only requests within a scope pass.
    #[default]
    Whitelist,
    /// Requests within a scope are refused.
    Blacklist,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct ScopeConf {
    realm_roles: Vec<RealmRole>,
    client_roles: Vec<ClientRole>,
    resource: String,
    resource_type: TextType,
    methods: Vec<String>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct RealmRole {
    name: String,
    name_type: TextType,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct ClientRole {
    name: String,
    name_type: TextType,
    client: String,
    client_type: TextType,
}

#[derive(Debug)]
struct Scope {
    resource: Resource,
    realm: Box<[Text]>,
    /// Clients and roles.
    client: Box<[(Text, Text)]>,
}

/// The policy.
#[derive(Debug)]
struct Roles {
    scopes: Box<[Scope]>,
    kind: Kind,
}

/// Compiles the policy.
pub(super) fn compile(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<Conf>(conf, field, cx)?;
    let compile = |(at, scope): (usize, ScopeConf)| {
        let field = format!("{field}.scopes[{at}]");
        let resource = (scope.resource.as_str(), scope.resource_type);
        let realm = |(at, role): (usize, RealmRole)| {
            Text::compile(&role.name, role.name_type, &format!("{field}.realm_roles[{at}].name"))
        };
        let client = |(at, role): (usize, ClientRole)| {
            let field = format!("{field}.client_roles[{at}]");
            let client = Text::compile(&role.client, role.client_type, &format!("{field}.client"))?;
            Ok((client, Text::compile(&role.name, role.name_type, &format!("{field}.name"))?))
        };
        Ok(Scope {
            resource: Resource::compile(scope.methods, resource, &format!("{field}.resource"))?,
            realm: scope.realm_roles.into_iter().enumerate().map(realm).collect::<Result<_, Invalid>>()?,
            client: scope.client_roles.into_iter().enumerate().map(client).collect::<Result<_, Invalid>>()?,
        })
    };
    let scopes = cx.ok(conf.scopes.into_iter().enumerate().map(compile).collect::<Result<_, Invalid>>())?;
    Some(DraftLink::of(Roles { scopes, kind: conf.kind }))
}

/// True if a list of roles, a member of `place`, has a role.
fn has_role(place: Option<&Value>, role: &str) -> bool {
    let roles = place.and_then(|place| place.get("roles")).and_then(Value::as_array);
    roles.is_some_and(|roles| roles.iter().any(|known| known.as_str() == Some(role)))
}

impl Scope {
    fn holds(&self, claims: &Claims, around: &Around<'_>) -> bool {
        self.resource.takes(around)
            && self.realm.iter().all(|role| has_role(claims.get("realm_access"), &role.render(around)))
            && self.client.iter().all(|(client, role)| {
                let client = claims.get("resource_access").and_then(|all| all.get(&*client.render(around)));
                has_role(client, &role.render(around))
            })
    }
}

impl Policy for Roles {
    fn access(&self, parts: &Parts, cx: &mut RequestCx<'_>, state: &mut State) -> Step {
        let around = Around { view: cx.view(), state, names: &parts.names };
        let is_within = match state.jwt.as_deref() {
            Some(claims) => self.scopes.iter().any(|scope| scope.holds(claims, &around)),
            // Nobody can say what a caller without a token may do: a list of the forbidden does not help.
            None => self.kind == Kind::Blacklist,
        };
        match is_within == (self.kind == Kind::Whitelist) {
            true => Step::Next,
            false => Step::Done(parts.errors.refuse(cx, Refusal::AuthFailed, None)),
        }
    }
}
