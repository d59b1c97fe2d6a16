use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::address::{LISTEN_EXPECTED, ListenVisitor};
use super::{FileMode, ListenAddr};

/// A listener for traffic: an address, or a mapping with more fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Address that the listener is bound to.
    pub address: ListenAddr,
    /// True if every connection has to begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// HTTP/2 if true; `None`: as `http2.enabled` with TLS, off without.
    pub http2: Option<bool>,
    /// True if TLS is ended at a listener for streams; other listeners say it by their setting.
    pub tls: bool,
    /// The permissions of a Unix socket.
    pub mode: FileMode,
}

/// The mapping.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Described {
    /// `ADDRESS:PORT`, a port alone, or `unix:/PATH`.
    address: ListenAddr,
    /// Every connection has to begin with a PROXY protocol header, version 1 or 2, from a peer in
    /// `proxy_protocol.trusted`, if true.
    #[serde(default)]
    proxy_protocol: bool,
    /// HTTP/2: offered to clients with TLS, or taken by prior knowledge without. Unset: as `http2.enabled` for
    /// listeners with TLS; those without take HTTP/1.1 alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    http2: Option<bool>,
    /// True if TLS is ended here, with certificates of `ssls`: for `listen.tcp`, since the other settings say it
    /// themselves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    tls: bool,
    /// The permissions of a Unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<FileMode>,
}

impl From<ListenAddr> for Listener {
    fn from(address: ListenAddr) -> Self {
        Self { address, proxy_protocol: false, http2: None, tls: false, mode: FileMode::EVERYONE }
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
        let Self { proxy_protocol, http2, tls, .. } = *self;
        Described { address: self.address.clone(), proxy_protocol, http2, tls, mode }.serialize(serializer)
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
                let Described { address, proxy_protocol, http2, tls, mode } =
                    Described::deserialize(MapAccessDeserializer::new(map))?;
                if mode.is_some() && address.unix().is_none() {
                    return Err(A::Error::custom("`mode` is for a Unix socket, and this is none"));
                }
                Ok(Listener { address, proxy_protocol, http2, tls, mode: mode.unwrap_or(FileMode::EVERYONE) })
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
