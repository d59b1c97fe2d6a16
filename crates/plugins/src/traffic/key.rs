//! Keys of limiters.

use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_expr::{Template, TemplateError, Value, Variable, VariableError};
use weir_plugin::{Invalid, RequestCx};

/// The meaning of `key`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeyType {
    /// The name of a variable.
    #[default]
    Var,
    /// A text with variables, such as `$remote_addr $http_x_tenant`.
    VarCombination,
    /// All requests count together.
    Constant,
}

/// The source of a request's key.
#[derive(Debug)]
pub(crate) enum KeySource {
    /// The client's address: the usual key, and what takes the place of one that is not set.
    Address,
    Variable(Variable),
    Combination(Template),
    /// Its hash and its text.
    Constant(Key, Box<str>),
    /// There is one counter.
    Everything,
}

/// The counter for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Key(Key),
    Everything,
}

/// The hash of a key.
///
/// The hash has 128 bits and is keyed by a random seed of the process: two keys share a counter with a probability that does
/// not matter, and nobody can look for such keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u128);

/// The variable of nginx that holds the client's address as bytes.
const BINARY_ADDRESS: &str = "binary_remote_addr";

/// Keeps addresses apart from texts and numbers with the same bytes.
const ADDRESS: u32 = 1 << 31;
const NUMBER: u32 = 1 << 30;

impl KeySource {
    /// `key` and `key_type`. With `shared`, whatever else counts in the same table may have another key.
    pub(crate) fn compile(key: &str, key_type: KeyType, shared: bool) -> Result<Self, Invalid> {
        Self::read(key, key_type, shared).map(|(source, _)| source)
    }

    /// Findings about a `key` that can be compiled: no variable may have its name, as that of `$consumer_name`,
    /// which people write here too.
    pub(crate) fn warning(key: &str, key_type: KeyType) -> Option<Invalid> {
        let (_, warning) = Self::read(key, key_type, false).ok()?;
        warning.map(|message| Invalid::warning("key", message))
    }

    /// The source, and what there is to say of it.
    fn read(key: &str, key_type: KeyType, shared: bool) -> Result<(Self, Option<String>), Invalid> {
        let source = match key_type {
            KeyType::Var => match Variable::parse(key) {
                Ok(Variable::RemoteAddr) => Self::Address,
                Ok(variable) => {
                    let doubt = VariableError::doubt(key);
                    let doubt =
                        doubt.map(|reason| format!("{reason}; without the field the client's address is counted"));
                    return Ok((Self::Variable(variable), doubt));
                }
                Err(_) if key == BINARY_ADDRESS => Self::Address,
                // One that APISIX knows would count by something else there.
                Err(error @ VariableError::Unsupported { .. }) => return Err(Invalid::new("key", error.to_string())),
                Err(error) => {
                    let why = match key.strip_prefix('$') {
                        Some(name) => {
                            format!("a variable is named without $ here: {name}, or with key_type: var_combination")
                        }
                        None => error.to_string(),
                    };
                    let warning = format!("{why}; it is never set, so requests are counted by the client's address");
                    return Ok((Self::Address, Some(warning)));
                }
            },
            KeyType::VarCombination => {
                let template = Template::parse_lenient(key, false);
                let source = Self::Combination(template.map_err(|error| Invalid::new("key", error.to_string()))?);
                let message = |error: &TemplateError| match error.reason.is_doubtful() {
                    true => format!("{error}; without any variable that is set the client's address is counted"),
                    false => format!("{error}; it counts as not set, and without any the client's address is counted"),
                };
                return Ok((source, Template::unknown(key).first().map(message)));
            }
            KeyType::Constant if shared => Self::Constant(Key::new(0, key.as_bytes()), key.into()),
            KeyType::Constant => Self::Everything,
        };
        Ok((source, None))
    }

    /// The `key` of one rule among several, at `field`.
    pub(crate) fn compile_rule(key: &str, field: String) -> Result<Self, Invalid> {
        let template = Template::parse(key).map_err(|error| Invalid::new(field.as_str(), error.to_string()))?;
        if template.literal().is_some() {
            let message = "expected a text with a variable: without one a rule is never used";
            return Err(Invalid::new(field, message));
        }
        Ok(Self::Combination(template))
    }

    /// The counter for a request, of those of the limit with this number: 0, or a rule's place from 1. `None`: of a
    /// rule, when the request has none of its variables.
    pub(crate) fn which(&self, number: u32, cx: &mut RequestCx<'_>) -> Option<Which> {
        let address = |address| Key::of_address(number, address);
        Some(Which::Key(match self {
            Self::Address => address(cx.client().addr),
            Self::Everything => return Some(Which::Everything),
            Self::Constant(key, _) => *key,
            Self::Variable(variable) => match cx.variable(variable) {
                Some(Value::Bytes(text)) => Key::new(number, text),
                Some(Value::Number(n) | Value::Millis(n)) => Key::new(number | NUMBER, &n.to_le_bytes()),
                Some(Value::Ip(ip)) => address(ip),
                Some(Value::Boolean(boolean)) => Key::new(number, if boolean { b"true" } else { b"false" }),
                Some(Value::Json(json)) => Key::new(number, json.as_bytes()),
                None => address(cx.client().addr),
            },
            Self::Combination(template) => {
                if !template.has_any(cx.source()) {
                    return (number == 0).then(|| Which::Key(address(cx.client().addr)));
                }
                let mut text = cx.take_scratch();
                template.render(cx.source(), &mut text);
                let key = Key::new(number, &text);
                cx.put_scratch(text);
                key
            }
        }))
    }
}

impl KeySource {
    /// Writes what a request counts under, as another process would write it: an address after `ip:`, anything else
    /// after `val:`. False: the request has none of the variables of a rule.
    pub(crate) fn write(&self, number: u32, cx: &RequestCx<'_>, out: &mut Vec<u8>) -> bool {
        let address = |address: IpAddr, out: &mut Vec<u8>| {
            out.extend_from_slice(b"ip:");
            Value::Ip(address).write_to(out);
            true
        };
        match self {
            Self::Address => return address(cx.client().addr, out),
            Self::Everything => out.extend_from_slice(b"all"),
            Self::Constant(_, text) => {
                out.extend_from_slice(b"val:");
                out.extend_from_slice(text.as_bytes());
            }
            Self::Variable(variable) => match cx.variable(variable) {
                None => return address(cx.client().addr, out),
                Some(Value::Ip(ip)) => return address(ip, out),
                Some(value) => {
                    out.extend_from_slice(b"val:");
                    value.write_to(out);
                }
            },
            Self::Combination(template) => {
                if !template.has_any(cx.source()) {
                    return number == 0 && address(cx.client().addr, out);
                }
                out.extend_from_slice(b"val:");
                template.render(cx.source(), out);
            }
        }
        true
    }
}

impl Key {
    /// The key made of `part` under `domain`, which keeps keys of different kinds apart.
    pub(crate) fn new(domain: u32, part: &[u8]) -> Self {
        let (first, second) = seeds();
        let half = |seed: &foldhash::quality::RandomState| {
            let mut hasher = seed.build_hasher();
            hasher.write_u32(domain);
            hasher.write(part);
            hasher.finish()
        };
        Self(u128::from(half(first)) << 64 | u128::from(half(second)))
    }

    fn of_address(number: u32, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::new(number | ADDRESS, &v4.octets()),
            IpAddr::V6(v6) => Self::new(number | ADDRESS, &v6.octets()),
        }
    }
}

fn seeds() -> &'static (foldhash::quality::RandomState, foldhash::quality::RandomState) {
    static SEEDS: std::sync::LazyLock<(foldhash::quality::RandomState, foldhash::quality::RandomState)> =
        std::sync::LazyLock::new(Default::default);
    &SEEDS
}

impl std::hash::Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0 as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn kinds_of_keys_are_apart() {
        assert_eq!(Key::new(0, b"a"), Key::new(0, b"a"));
        assert_ne!(Key::new(0, b"a"), Key::new(1, b"a"));
        assert_ne!(Key::new(0, b"a"), Key::new(0, b"b"));
    }
}
