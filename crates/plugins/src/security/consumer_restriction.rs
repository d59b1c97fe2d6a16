//! `consumer-restriction`: by who calls, and by what they call.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::{Method, Methods};
use weir_expr::{Value, Variable};
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};

/// The definition.
#[derive(Debug)]
pub(crate) struct ConsumerRestriction;

/// On a route, a service, a consumer or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The compared value: the consumer's name or that of its group, the id of the route or that of its service. The
    /// last two are for restrictions on a consumer.
    #[serde(rename = "type")]
    #[schemars(extend("default" = "consumer_name"))]
    kind: Kind,
    /// The values that are let through; all others are refused. It goes before `allowed_by_methods`.
    #[schemars(length(min = 1))]
    whitelist: Option<Vec<String>>,
    /// The values that are refused. It goes before `whitelist`.
    #[schemars(length(min = 1))]
    blacklist: Option<Vec<String>>,
    /// The methods that each is let through with. Who is not in this list is not restricted by it.
    #[schemars(length(min = 1))]
    allowed_by_methods: Option<Vec<Allowed>>,
    /// The status of a refusal.
    #[schemars(range(min = 200, max = 999))]
    rejected_code: u16,
    /// The message to a refused client; unset: `The consumer_name is forbidden.` and so on.
    #[schemars(length(min = 1))]
    rejected_msg: Option<String>,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            kind: Kind::ConsumerName,
            whitelist: None,
            blacklist: None,
            allowed_by_methods: None,
            rejected_code: 403,
            rejected_msg: None,
        }
    }
}

/// The compared value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum Kind {
    ConsumerName,
    ConsumerGroupId,
    ServiceId,
    RouteId,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::ConsumerName => "consumer_name",
            Self::ConsumerGroupId => "consumer_group_id",
            Self::ServiceId => "service_id",
            Self::RouteId => "route_id",
        }
    }

    fn variable(self) -> Variable {
        match self {
            Self::ConsumerName => Variable::ConsumerName,
            Self::ConsumerGroupId => Variable::ConsumerGroupId,
            Self::ServiceId => Variable::ServiceId,
            Self::RouteId => Variable::RouteId,
        }
    }
}

/// Methods of one consumer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct Allowed {
    /// The consumer's name, or whatever `type` looks at.
    user: String,
    /// The methods that it is let through with.
    #[schemars(length(min = 1))]
    methods: Methods,
}

impl Define for ConsumerRestriction {
    const NAME: &'static str = "consumer-restriction";
    const PRIORITY: i32 = 2400;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Lets consumers through, or refuses them with 403, once an authentication plugin has found out who calls. On a route, a \
service or a global rule it names consumers or their groups; on a consumer it names the routes or services that this \
consumer may call.

Where there is nothing to look at, such as a request without a consumer, or a consumer without a group, the answer is \
401: `The request is rejected, please check the consumer_name for this request`.

`blacklist` is looked at first, then `whitelist`, then `allowed_by_methods`.";
    const EXAMPLE: &'static str = "\
blacklist: [jill]
allowed_by_methods:
  - user: guest
    methods: [GET, HEAD]
rejected_msg: not for you
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let has_methods = conf.allowed_by_methods.is_some();
        let by_methods = conf.allowed_by_methods.unwrap_or_default();
        match (&conf.whitelist, &conf.blacklist, has_methods) {
            (None, None, false) => cx.say([nothing_listed()]),
            (Some(_), _, true) => {
                let message = "whitelist goes before it and refuses whatever it does not hold: it has no effect";
                cx.warn("allowed_by_methods", message);
            }
            _ => {}
        }
        let mut methods: HashMap<_, _, _> = HashMap::default();
        for (at, Allowed { user, methods: allowed }) in by_methods.into_iter().enumerate() {
            match methods.entry(user.as_bytes().into()) {
                Entry::Vacant(place) => {
                    place.insert(allowed);
                }
                Entry::Occupied(_) => {
                    let message = format!("'{user}' stands in the list already: it has no effect");
                    cx.warn(format!("allowed_by_methods[{at}].user"), message);
                }
            }
        }
        let name = conf.kind.name();
        Some(Compiled::ready(Restricted {
            looked_at: conf.kind.variable(),
            denied: conf.blacklist.map(set).unwrap_or_default(),
            allowed: conf.whitelist.map(set),
            methods,
            code: conf.rejected_code,
            message: conf.rejected_msg.unwrap_or_else(|| format!("The {name} is forbidden.")),
            nobody: format!("The request is rejected, please check the {name} for this request"),
        }))
    }
}

fn nothing_listed() -> Invalid {
    Invalid::new("", "expected whitelist, blacklist or allowed_by_methods")
}

type Set = HashSet<Box<[u8]>, RandomState>;

fn set(names: Vec<String>) -> Set {
    names.into_iter().map(|name| name.into_bytes().into()).collect()
}

/// An instance.
#[derive(Debug)]
struct Restricted {
    looked_at: Variable,
    denied: Set,
    allowed: Option<Set>,
    methods: HashMap<Box<[u8]>, Methods, RandomState>,
    code: u16,
    message: String,
    /// The message where there is no value to compare.
    nobody: String,
}

impl Plugin for Restricted {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let passes = match cx.variable(&self.looked_at) {
            Some(Value::Bytes(value)) => self.lets_through(value, cx.request().method_bytes()),
            _ => return cx.refuse(401, &self.nobody),
        };
        if passes { Flow::Continue } else { cx.refuse(self.code, &self.message) }
    }
}

impl Restricted {
    fn lets_through(&self, value: &[u8], method: &[u8]) -> bool {
        if self.denied.contains(value) {
            return false;
        }
        if let Some(allowed) = &self.allowed {
            return allowed.contains(value);
        }
        // A method that is none of those that can be listed is not allowed to anybody who is listed.
        let of = |methods: &Methods| Method::from_token(method).is_some_and(|method| methods.contains(method));
        self.methods.get(value).is_none_or(of)
    }
}
