use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ListenAddr;
use super::address::{LISTEN_EXPECTED, ListenVisitor};

/// Where traffic comes in: an address, or a mapping that says more of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Where it listens.
    pub address: ListenAddr,
    /// Whether every connection has to begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Who may connect to a Unix socket.
    pub mode: SocketMode,
}

/// The permissions of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u16);

/// The mapping.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Described {
    /// `ADDRESS:PORT`, a port alone, or `unix:/PATH`.
    address: ListenAddr,
    /// Whether every connection has to begin with a PROXY protocol header, version 1 or 2, from a peer in
    /// `proxy_protocol.trusted`.
    #[serde(default)]
    proxy_protocol: bool,
    /// The permissions of a Unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<SocketMode>,
}

impl From<ListenAddr> for Listener {
    fn from(address: ListenAddr) -> Self {
        Self { address, proxy_protocol: false, mode: SocketMode::default() }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl Serialize for Listener {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if *self == Self::from(self.address.clone()) {
            return self.address.serialize(serializer);
        }
        let mode = self.address.unix().map(|_| self.mode);
        Described { address: self.address.clone(), proxy_protocol: self.proxy_protocol, mode }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Listener {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListenerVisitor;
        impl<'de> Visitor<'de> for ListenerVisitor {
            type Value = Listener;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{LISTEN_EXPECTED}, or a mapping with `address`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Listener, E> {
                ListenVisitor.visit_str(text).map(Listener::from)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Listener, E> {
                ListenVisitor.visit_i64(number).map(Listener::from)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Listener, A::Error> {
                let Described { address, proxy_protocol, mode } =
                    Described::deserialize(MapAccessDeserializer::new(map))?;
                if mode.is_some() && address.unix().is_none() {
                    return Err(A::Error::custom("`mode` is for a Unix socket, and this is none"));
                }
                Ok(Listener { address, proxy_protocol, mode: mode.unwrap_or_default() })
            }
        }
        deserializer.deserialize_any(ListenerVisitor)
    }
}

impl JsonSchema for Listener {
    fn schema_name() -> Cow<'static, str> {
        "Listener".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (address, described) = (generator.subschema_for::<ListenAddr>(), generator.subschema_for::<Described>());
        json_schema!({ "anyOf": [address, described] })
    }
}

const MODE_EXPECTED: &str = "octal permissions as a text: \"0660\"";

impl SocketMode {
    /// The permission bits.
    pub fn bits(self) -> u16 {
        self.0
    }
}

impl Default for SocketMode {
    /// Everyone may connect, as to a port of the loopback address; nginx and systemd do the same.
    fn default() -> Self {
        Self(0o666)
    }
}

impl Serialize for SocketMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:04o}", self.0))
    }
}

impl<'de> Deserialize<'de> for SocketMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        let digits = matches!(text.len(), 3 | 4) && text.bytes().all(|b| b.is_ascii_digit());
        match u16::from_str_radix(&text, 8) {
            Ok(bits @ ..=0o777) if digits => Ok(Self(bits)),
            _ => Err(D::Error::invalid_value(Unexpected::Str(&text), &MODE_EXPECTED)),
        }
    }
}

impl JsonSchema for SocketMode {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "SocketMode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^0?[0-7]{3}$", "x-expected": MODE_EXPECTED })
    }
}
