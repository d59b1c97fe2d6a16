use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes from `MIN` to `MAX`: a number, or a text with a unit (`64KiB`, `1MiB`, `2GiB`, `10kB`, `10MB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size<const MIN: u64, const MAX: u64>(u64);

/// A time from `MIN` to `MAX` milliseconds: a number of seconds, decimals allowed, or a text with a unit (`500ms`,
/// `5s`, `2m`, `1h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds<const MIN: u64, const MAX: u64>(Duration);

/// 1 KiB in bytes.
pub const KIB: u64 = 1024;
/// 1 MiB in bytes.
pub const MIB: u64 = 1024 * KIB;
/// 1 GiB in bytes.
pub const GIB: u64 = 1024 * MIB;

impl<const MIN: u64, const MAX: u64> Size<MIN, MAX> {
    /// A size that is known to be in range.
    pub const fn constant(bytes: u64) -> Self {
        assert!(bytes >= MIN && bytes <= MAX, "the size is out of range");
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The number of bytes, for what is kept in memory.
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }

    fn expected() -> String {
        format!("a size from {} to {}", show_bytes(MIN), show_bytes(MAX))
    }

    fn check(bytes: u64) -> Option<Self> {
        (MIN..=MAX).contains(&bytes).then_some(Self(bytes))
    }
}

impl<const MIN: u64, const MAX: u64> Seconds<MIN, MAX> {
    /// A time in milliseconds that is known to be in range.
    pub const fn constant(milliseconds: u64) -> Self {
        assert!(milliseconds >= MIN && milliseconds <= MAX, "the time is out of range");
        Self(Duration::from_millis(milliseconds))
    }

    /// The time.
    pub const fn duration(self) -> Duration {
        self.0
    }

    fn expected() -> String {
        format!("a time from {} to {}", show_time(MIN), show_time(MAX))
    }

    fn check(seconds: f64) -> Option<Self> {
        let duration = Duration::try_from_secs_f64(seconds).ok()?;
        let range = Duration::from_millis(MIN)..=Duration::from_millis(MAX);
        range.contains(&duration).then_some(Self(duration))
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text);
    let factor = match unit {
        "" | "B" => 1,
        "KiB" | "K" | "k" => KIB,
        "MiB" | "M" | "m" => MIB,
        "GiB" | "G" | "g" => GIB,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

fn parse_time(text: &str) -> Option<f64> {
    let (number, unit) = split_unit(text);
    let factor = match unit {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

fn show_bytes(bytes: u64) -> String {
    for (factor, unit) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{unit}", bytes / factor);
        }
    }
    bytes.to_string()
}

fn show_time(milliseconds: u64) -> String {
    match milliseconds {
        0 => "0".into(),
        ms if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        ms if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

macro_rules! quantity {
    ($name:ident, $from_number:expr, $from_text:expr, $show:expr) => {
        impl<const MIN: u64, const MAX: u64> fmt::Display for $name<MIN, MAX> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&$show(self.0))
            }
        }

        impl<const MIN: u64, const MAX: u64> Serialize for $name<MIN, MAX> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for $name<MIN, MAX> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct QuantityVisitor<const MIN: u64, const MAX: u64>;
                impl<const MIN: u64, const MAX: u64> Visitor<'_> for QuantityVisitor<MIN, MAX> {
                    type Value = $name<MIN, MAX>;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(&$name::<MIN, MAX>::expected())
                    }

                    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
                        $from_number(number as f64)
                            .and_then($name::check)
                            .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Signed(number), &self))
                    }

                    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
                        $from_number(number as f64)
                            .and_then($name::check)
                            .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Unsigned(number), &self))
                    }

                    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
                        $from_number(number)
                            .and_then($name::check)
                            .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Float(number), &self))
                    }

                    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                        $from_text(text)
                            .and_then($name::check)
                            .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
                    }
                }
                deserializer.deserialize_any(QuantityVisitor)
            }
        }

        impl<const MIN: u64, const MAX: u64> JsonSchema for $name<MIN, MAX> {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                format!("{}_{MIN}_{MAX}", stringify!($name)).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": ["string", "number"], "x-expected": Self::expected() })
            }
        }
    };
}

fn whole(number: f64) -> Option<u64> {
    (number >= 0.0 && number.fract() == 0.0 && number < 9e15).then_some(number as u64)
}

fn show_duration(duration: Duration) -> String {
    if duration.subsec_nanos().is_multiple_of(1_000_000) {
        show_time(duration.as_millis() as u64)
    } else {
        format!("{}s", duration.as_secs_f64())
    }
}

quantity!(Size, whole, parse_size, show_bytes);
quantity!(Seconds, Some, parse_time, show_duration);
