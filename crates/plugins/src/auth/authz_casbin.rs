//! `authz-casbin`: a model and a policy of Casbin decide whether a user may use a path with a method.

mod matcher;
mod model;

use std::sync::Arc;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::name::FieldName;

use model::Enforcer;

/// The definition.
#[derive(Debug)]
pub(crate) struct AuthzCasbin;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The model: what a request and a policy consist of, and when one matches the other.
    model: Option<String>,
    /// The policy: lines such as `p, alice, /orders/*, GET` and `g, alice, admin`.
    policy: Option<String>,
    /// The file of the model, read when the configuration is loaded.
    model_path: Option<String>,
    /// The file of the policy, read when the configuration is loaded.
    policy_path: Option<String>,
    /// The field of requests with the name of the user; without it a request is that of `anonymous`.
    username: String,
}

/// `plugin_metadata` of the plugin.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// The model for places without their own.
    model: Option<String>,
    /// The policy for places without their own.
    policy: Option<String>,
}

impl Define for AuthzCasbin {
    const NAME: &'static str = "authz-casbin";
    const PRIORITY: i32 = 2560;
    const PHASES: Phases = Phases::REWRITE;
    const DOC: &'static str = "\
Lets a request pass where a policy of Casbin allows its user to use its path with its method, and answers 403 otherwise. The \
user's name is in a field of the request: whoever sets that field has to be trusted, such as an authentication in front of it.

Models have `request_definition` with three names, `policy_definition`, `role_definition` where there are roles, one of the four \
usual forms of `policy_effect`, and in `matchers` an expression of `==`, `!=`, `&&`, `||`, `!`, `in`, parentheses, texts and the \
functions `g`, `keyMatch`, `keyMatch2`, `keyMatch3`, `regexMatch` and `ipMatch`. Anything else in a model is refused.

`plugin_metadata` has a `model` and a `policy` for all places without their own.";
    const EXAMPLE: &'static str = "\
username: X-User
model: |
  [request_definition]
  r = sub, obj, act
  [policy_definition]
  p = sub, obj, act
  [role_definition]
  g = _, _
  [policy_effect]
  e = some(where (p.eft == allow))
  [matchers]
  m = (g(r.sub, p.sub) || keyMatch(r.sub, p.sub)) && keyMatch(r.obj, p.obj) && keyMatch(r.act, p.act)
policy: |
  p, *, /, GET
  p, admin, *, *
  g, alice, admin
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let typed = weir_config::schema::read::<Metadata>(metadata)?;
        let enforcer = match (&typed.model, &typed.policy) {
            (Some(model), Some(policy)) => Enforcer::new(model, policy).map(|_| ()),
            _ => Err(Invalid::new("model", "expected a model and a policy")),
        };
        enforcer
            .map_err(|fault| vec![Diagnostic::error(metadata.mark_of(&fault.path), fault.path.clone(), *fault.code)])
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let Some(username) = FieldName::new(&conf.username) else {
            cx.say([Invalid::new("username", "expected the name of a field")]);
            return None;
        };
        let texts = match (&conf.model, &conf.policy, &conf.model_path, &conf.policy_path) {
            (Some(model), Some(policy), None, None) => Some((model.clone(), policy.clone())),
            (None, None, Some(model), Some(policy)) => {
                Some((cx.ok(read("model_path", model))?, cx.ok(read("policy_path", policy))?))
            }
            (None, None, None, None) => None,
            _ => {
                let text = "expected model and policy, model_path and policy_path, or none of them";
                cx.say([Invalid::new("model", text)]);
                return None;
            }
        };
        let own = match texts {
            Some((model, policy)) => Some(Arc::new(cx.ok(Enforcer::new(&model, &policy))?)),
            None => None,
        };
        Some(Compiled::build(move |build| {
            let enforcer = match own {
                Some(own) => own,
                None => {
                    let Metadata { model, policy } = build.metadata()?;
                    let (Some(model), Some(policy)) = (model, policy) else {
                        return Err(Invalid::new("model", "expected a model and a policy here or in plugin_metadata"));
                    };
                    Arc::new(Enforcer::new(&model, &policy)?)
                }
            };
            Ok(Enforcing { username, enforcer })
        }))
    }
}

fn read(field: &str, path: &str) -> Result<String, Invalid> {
    weir_config::file::read_text(path.as_ref()).map_err(|error| Invalid::new(field, format!("{path}: {error}")))
}

/// An instance.
#[derive(Debug)]
struct Enforcing {
    username: FieldName,
    enforcer: Arc<Enforcer>,
}

impl Plugin for Enforcing {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let request = cx.request();
        let user = request.field(&self.username).unwrap_or(b"anonymous");
        if self.enforcer.allows([user, request.path(), request.method_bytes()]) {
            return Flow::Continue;
        }
        cx.refuse(403, "Access Denied")
    }
}
