use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_expr::{Template, Variable};

use crate::code::Code;
use crate::node::quoted;

/// Algorithm that chooses a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Balancer {
    /// In turn, smoothly by weight.
    #[default]
    Roundrobin,
    /// By a hash of `key`: the same key goes to the same node while that is there.
    Chash,
    /// The node with the fewest requests under way for its weight.
    LeastConn,
    /// Of two nodes by chance, the one that has answered sooner of late; weights other than 0 do not count.
    Ewma,
}

/// Input of the hash of `type: chash`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HashOn {
    /// The variable that `key` names: `uri`, `server_name`, `server_addr`, `request_uri`, `remote_port`,
    /// `remote_addr`, `query_string`, `host`, `hostname`, `mqtt_client_id` (on streams with mqtt-proxy) or `arg_NAME`.
    #[default]
    Vars,
    /// The request header that `key` names.
    Header,
    /// The cookie that `key` names.
    Cookie,
    /// The consumer; `key` is not needed.
    Consumer,
    /// The text `key`, with its variables replaced: `$host$request_uri`.
    VarsCombinations,
}

/// Input of a request's hash, ready to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// The value of a variable.
    Variable(Variable),
    /// A text with variables.
    Text(Template),
}

/// The variables that `hash_on: vars` takes, beside `arg_NAME`.
const VARS: &[&str] = &[
    "uri",
    "server_name",
    "server_addr",
    "request_uri",
    "remote_port",
    "remote_addr",
    "query_string",
    "host",
    "hostname",
    "mqtt_client_id",
];

impl Balancer {
    /// The name in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Roundrobin => "roundrobin",
            Self::Chash => "chash",
            Self::LeastConn => "least_conn",
            Self::Ewma => "ewma",
        }
    }
}

impl HashOn {
    /// Pattern of the key in APISIX's schema; `None`: any text will do, or none.
    pub(crate) const fn key_pattern(self) -> Option<&'static str> {
        match self {
            Self::Vars => Some(
                "^((uri|server_name|server_addr|request_uri|remote_port|remote_addr|query_string|host|hostname\
                 |mqtt_client_id)|arg_[0-9a-zA-z_-]+)$",
            ),
            Self::Header | Self::Cookie => Some("^[a-zA-Z0-9-_]+$"),
            Self::Consumer | Self::VarsCombinations => None,
        }
    }
}

impl HashKey {
    /// Compiles `hash_on` and `key`.
    ///
    /// # Errors
    /// Checks and compiles the key; the error says what is wrong with it.
    pub fn new(hash_on: HashOn, key: Option<&str>) -> Result<Self, Code> {
        let named = |what: &'static str| key.ok_or(Code::ChashWithoutKey { what });
        let text = |error: &dyn ToString| Code::HashKeyText { reason: error.to_string() };
        let member = |family: &str, key: &str| {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
            if key.is_empty() || !key.bytes().all(allowed) {
                let (found, key) = (quoted(key), key.to_owned());
                let pattern = hash_on.key_pattern().unwrap_or_default();
                return Err(Code::HashKeyCharacters { found, key, pattern });
            }
            Variable::parse(&format!("{family}{key}")).map_err(|error| text(&error))
        };
        Ok(match hash_on {
            HashOn::Consumer => Self::Variable(Variable::ConsumerName),
            HashOn::Header => Self::Variable(member("http_", named("the name of a header field")?)?),
            HashOn::Cookie => Self::Variable(member("cookie_", named("the name of a cookie")?)?),
            HashOn::Vars => {
                let key = named("the name of a variable, such as remote_addr or arg_id")?;
                match key.strip_prefix("arg_") {
                    Some(name) => Self::Variable(member("arg_", name)?),
                    None if VARS.contains(&key) => Self::Variable(Variable::parse(key).map_err(|error| text(&error))?),
                    None => {
                        let (known, found, key) = (VARS.join(", "), quoted(key), key.to_owned());
                        let pattern = hash_on.key_pattern().unwrap_or_default();
                        return Err(Code::HashKeyVariable { known, found, key, pattern });
                    }
                }
            }
            HashOn::VarsCombinations => {
                let template = named("a text with variables, such as $host$request_uri")?;
                Self::Text(Template::parse(template).map_err(|error| text(&error))?)
            }
        })
    }

    /// The variables it reads.
    pub fn variables(&self) -> Box<dyn Iterator<Item = &Variable> + '_> {
        match self {
            Self::Variable(variable) => Box::new(std::iter::once(variable)),
            Self::Text(text) => Box::new(text.variables()),
        }
    }
}
