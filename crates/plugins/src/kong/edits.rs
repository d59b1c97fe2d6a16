//! Changes of fields, as both transformers write them: `name:value`.

use weir_plugin::Invalid;
use weir_wire::name::FieldName;

/// Changes of fields, in the order in which they are made.
#[derive(Debug, Default)]
pub(super) struct Edits {
    pub(super) remove: Vec<FieldName>,
    pub(super) rename: Vec<(FieldName, FieldName)>,
    pub(super) replace: Vec<Named>,
    pub(super) add: Vec<Named>,
    pub(super) append: Vec<Named>,
}

/// A field with its value.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) name: FieldName,
    pub(super) value: String,
}

impl Edits {
    /// Names of fields.
    pub(super) fn names((change, entries): (&str, Vec<String>)) -> Result<Vec<FieldName>, Invalid> {
        let entries = entries.iter().enumerate();
        entries
            .map(|(at, name)| field(name).ok_or_else(|| fault(change, at, "expected the name of a header")))
            .collect()
    }

    /// Pairs of a name and a value, which is not trimmed by Kong and is by HTTP.
    pub(super) fn pairs((change, entries): (&str, Vec<String>)) -> Result<Vec<Named>, Invalid> {
        let pair = |(at, entry): (usize, &String)| {
            let (name, value) = entry.split_once(':').ok_or_else(|| fault(change, at, "expected name:value"))?;
            let name =
                field(name).ok_or_else(|| fault(change, at, "expected the name of a header before the colon"))?;
            if !value.bytes().all(weir_wire::is_field_byte) {
                return Err(fault(change, at, "expected a value without control characters"));
            }
            Ok(Named { name, value: value.trim().to_owned() })
        };
        entries.iter().enumerate().map(pair).collect()
    }

    /// Pairs whose values are names.
    pub(super) fn renames(pairs: Vec<Named>) -> Result<Vec<(FieldName, FieldName)>, Invalid> {
        let rename = |(at, Named { name, value }): (usize, Named)| {
            let new = field(&value).ok_or_else(|| fault("rename", at, "expected old:new, two names of headers"))?;
            Ok((name, new))
        };
        pairs.into_iter().enumerate().map(rename).collect()
    }
}

fn field(name: &str) -> Option<FieldName> {
    // Framing is the gateway's own.
    let is_framing =
        ["content-length", "transfer-encoding", "connection"].iter().any(|own| name.eq_ignore_ascii_case(own));
    FieldName::new(name).filter(|_| !is_framing)
}

fn fault(change: &str, at: usize, text: &str) -> Invalid {
    Invalid::new(format!("{change}.headers[{at}]"), text)
}
