use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::resource::SslProtocol;

/// Number of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// One for each core the process may use.
    #[default]
    Auto,
    /// So many, 1 to 1024.
    Count(NonZeroU16),
}

/// Algorithm that matches routes; the names are APISIX's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RouterMode {
    /// Routes with a matching host go before those without one; `:name` in a path is literal.
    #[default]
    RadixtreeHostUri,
    /// The host is one condition among others; `:name` in a path is literal.
    RadixtreeUri,
    /// As `radixtree_uri`, and `:name` in a path is a parameter.
    RadixtreeUriWithParameter,
}

/// Destination of an access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLogPath {
    /// Nowhere.
    #[default]
    Off,
    /// Standard output.
    Stdout,
    /// A file, which is appended to and reopened on SIGUSR1.
    File(PathBuf),
}

/// Destination of the gateway's own messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ErrorLogPath {
    /// Standard error.
    #[default]
    Stderr,
    /// A file, which is appended to and reopened on SIGUSR1.
    File(PathBuf),
}

/// Format of an access log line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// A JSON object a line.
    #[default]
    Json,
    /// A text with `$variable` and `${variable}`, as in nginx's `log_format`.
    Template(String),
}

/// Escaping of values in a line of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccessLogEscape {
    /// Quotes, backslashes and what is not printable ASCII as `\xXX`; `-` for a variable that is not set.
    #[default]
    Default,
    /// As within a JSON string; nothing for a variable that is not set.
    Json,
}

/// Declared types of the metrics whose type in APISIX is at odds with their name: `apisix_http_status`,
/// `apisix_bandwidth` and `apisix_http_requests_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MetricTypes {
    /// `untyped`, `untyped` and `counter`: `promtool check metrics` accepts the page. Collectors that go by the
    /// declared type take `untyped` for gauges.
    Linted,
    /// `counter`, `counter` and `gauge`, as APISIX declares them.
    #[default]
    Apisix,
}

/// A version of TLS that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum TlsVersion {
    /// RFC 5246.
    #[serde(rename = "TLSv1.2")]
    Tls12,
    /// RFC 8446.
    #[serde(rename = "TLSv1.3")]
    Tls13,
}

/// The least important messages that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures of the gateway.
    Error,
    /// Doubtful conditions.
    Warn,
    /// Rare events: start, reload, stop.
    #[default]
    Info,
    /// Details for finding a fault.
    Debug,
    /// Everything.
    Trace,
}

const WORKERS_EXPECTED: &str = "auto or an integer from 1 to 1024";

impl TlsVersion {
    /// The version as `ssl_protocols` has it.
    #[must_use]
    pub fn protocol(self) -> SslProtocol {
        match self {
            Self::Tls12 => SslProtocol::Tls12,
            Self::Tls13 => SslProtocol::Tls13,
        }
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => count.fmt(f),
        }
    }
}

impl Serialize for Workers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Count(count) => serializer.serialize_u16(count.get()),
        }
    }
}

impl<'de> Deserialize<'de> for Workers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WorkersVisitor;
        impl Visitor<'_> for WorkersVisitor {
            type Value = Workers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(WORKERS_EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Workers, E> {
                match text {
                    "auto" => Ok(Workers::Auto),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Workers, E> {
                u16::try_from(number)
                    .ok()
                    .filter(|count| *count <= 1024)
                    .and_then(NonZeroU16::new)
                    .map(Workers::Count)
                    .ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_any(WorkersVisitor)
    }
}

impl JsonSchema for Workers {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Workers".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"], "x-expected": WORKERS_EXPECTED })
    }
}

impl fmt::Display for AccessLogPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl From<&str> for AccessLogPath {
    fn from(text: &str) -> Self {
        match text {
            "off" => Self::Off,
            "stdout" | "/dev/stdout" => Self::Stdout,
            path => Self::File(path.into()),
        }
    }
}

impl fmt::Display for ErrorLogPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stderr => f.write_str("stderr"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl From<&str> for ErrorLogPath {
    fn from(text: &str) -> Self {
        match text {
            "stderr" | "/dev/stderr" => Self::Stderr,
            path => Self::File(path.into()),
        }
    }
}

impl fmt::Display for AccessLogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Json => "json",
            Self::Template(text) => text,
        })
    }
}

impl From<&str> for AccessLogFormat {
    fn from(text: &str) -> Self {
        match text {
            "json" => Self::Json,
            template => Self::Template(template.into()),
        }
    }
}

macro_rules! text_choice {
    ($($name:ident: $expected:literal),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<'de, str>::deserialize(deserializer)?;
                if text.is_empty() {
                    return Err(D::Error::invalid_value(Unexpected::Str(""), &$expected));
                }
                Ok(Self::from(&*text))
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "minLength": 1, "x-expected": $expected })
            }
        }
    )*};
}
text_choice!(
    AccessLogPath: "off, stdout or the path of a file",
    ErrorLogPath: "stderr or the path of a file",
    AccessLogFormat: "json or a text with $variables"
);
