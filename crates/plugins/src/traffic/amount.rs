//! A number in the configuration, or a text that a request turns into one.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use weir_expr::{Template, Value};
use weir_plugin::{Invalid, RequestCx};

/// An amount of at least `MIN`, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AmountConf<const MIN: u64 = 1> {
    /// A number.
    Number(u64),
    /// A number in quotes, or a text with variables.
    Text(String),
}

/// The same, ready for requests.
#[derive(Debug)]
pub(crate) enum Amount<const MIN: u64 = 1> {
    Number(u64),
    Template(Template),
}

impl<const MIN: u64> AmountConf<MIN> {
    /// The amount, where it is the same for every request.
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(n) => Some(*n),
            Self::Text(text) => text.trim().parse().ok(),
        }
    }

    /// Compiles the amount of `field`, which is `MIN` to `max`.
    pub(crate) fn compile(&self, field: &str, max: u64) -> Result<Amount<MIN>, Invalid> {
        let bounded = |n: u64| match n {
            n if (MIN..=max).contains(&n) => Ok(Amount::Number(n)),
            _ => Err(Invalid::new(field, format!("expected an integer from {MIN} to {max}, found {n}"))),
        };
        let text = match self {
            Self::Number(n) => return bounded(*n),
            Self::Text(text) => text,
        };
        if let Ok(n) = text.trim().parse() {
            return bounded(n);
        }
        let template = Template::parse(text).map_err(|error| Invalid::new(field, error.to_string()))?;
        if template.literal().is_some() {
            let message = format!("expected an integer from {MIN} to {max} or a text with a variable, found {text:?}");
            return Err(Invalid::new(field, message));
        }
        Ok(Amount::Template(template))
    }
}

impl<const MIN: u64> Amount<MIN> {
    /// The amount for a request; `None`: what its variables make is no whole number from `MIN` to `max`.
    pub(crate) fn resolve(&self, cx: &mut RequestCx<'_>, max: u64) -> Option<u64> {
        let template = match self {
            Self::Number(n) => return Some(*n),
            Self::Template(template) => template,
        };
        let mut text = cx.take_scratch();
        template.render(cx.source(), &mut text);
        let number =
            Value::Bytes(&text).as_number().filter(|n| n.fract() == 0.0 && *n >= MIN as f64 && *n <= max as f64);
        cx.put_scratch(text);
        number.map(|n| n as u64)
    }
}

impl<'de, const MIN: u64> Deserialize<'de> for AmountConf<MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AmountVisitor<const MIN: u64>;
        impl<const MIN: u64> Visitor<'_> for AmountVisitor<MIN> {
            type Value = AmountConf<MIN>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an integer of at least {MIN}, or a text with a variable")
            }

            fn visit_u64<E: Error>(self, n: u64) -> Result<AmountConf<MIN>, E> {
                Ok(AmountConf::Number(n))
            }

            fn visit_i64<E: Error>(self, n: i64) -> Result<AmountConf<MIN>, E> {
                u64::try_from(n).map(AmountConf::Number).map_err(|_| E::invalid_value(Unexpected::Signed(n), &self))
            }

            fn visit_f64<E: Error>(self, n: f64) -> Result<AmountConf<MIN>, E> {
                // JSON writers make 1e6 of 1000000. Beyond 2^53 a float is no exact integer.
                if n.fract() == 0.0 && (0.0..9e15).contains(&n) {
                    return Ok(AmountConf::Number(n as u64));
                }
                Err(E::invalid_value(Unexpected::Float(n), &self))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<AmountConf<MIN>, E> {
                Ok(AmountConf::Text(text.to_owned()))
            }
        }
        deserializer.deserialize_any(AmountVisitor::<MIN>)
    }
}

impl<const MIN: u64> JsonSchema for AmountConf<MIN> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("AmountFrom{MIN}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["integer", "string"], "minimum": MIN })
    }
}
