//! Extensions that a call asks for in the field `3scale-options`.

use crate::params::{self, Params};

/// Name of the field.
pub(crate) const FIELD: &str = "3scale-options";

/// Extensions that a call asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extensions {
    /// The code of a refusal in `3scale-rejection-reason`.
    pub(crate) rejection_reason_header: bool,
    /// The tightest limit in `3scale-limit-…`.
    pub(crate) limit_headers: bool,
    /// An answer without a body.
    pub(crate) no_body: bool,
    /// Usage in which parents have what their methods use.
    pub(crate) flat_usage: bool,
    /// The keys of the application in the answer.
    pub(crate) list_app_keys: bool,
    /// The children of limited metrics in the answer.
    pub(crate) hierarchy: bool,
}

impl Extensions {
    /// Reads the field, and `no_body` among the parameters of a call. An unreadable field asks for nothing.
    pub(crate) fn read(field: Option<&[u8]>, params: &Params) -> Self {
        let mut options = Params::new();
        if let Some(field) = field
            && params::parse(field, &mut options).is_err()
        {
            options.clear();
        }
        let is_on = |name: &str| params::text(&options, name) == Some("1");
        let no_body = options.get("no_body").filter(|value| !value.is_null()).or_else(|| params.get("no_body"));
        Self {
            rejection_reason_header: is_on("rejection_reason_header"),
            limit_headers: is_on("limit_headers"),
            no_body: no_body.is_some_and(|value| !matches!(value.as_str(), Some("0" | "false")) && !value.is_null()),
            flat_usage: is_on("flat_usage"),
            list_app_keys: is_on("list_app_keys"),
            hierarchy: is_on("hierarchy"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Extensions, Params};

    #[test]
    fn options_are_read() {
        let none = Extensions::default();
        for (field, query, expected) in [
            (
                "rejection_reason_header=1&limit_headers=1&no_body=1",
                "",
                Extensions { rejection_reason_header: true, limit_headers: true, no_body: true, ..none },
            ),
            (
                "flat_usage=1&list_app_keys=1&hierarchy=1",
                "",
                Extensions { flat_usage: true, list_app_keys: true, hierarchy: true, ..none },
            ),
            ("flat_usage=0&limit_headers=true&other=1", "", none),
            ("no_body=0", "no_body=1", none),
            ("no_body=false", "", none),
            ("no_body=yes", "", Extensions { no_body: true, ..none }),
            ("", "no_body=true", Extensions { no_body: true, ..none }),
            ("", "no_body=false", none),
            ("%zz&limit_headers=1", "", none),
        ] {
            let mut params = Params::new();
            crate::params::parse(query.as_bytes(), &mut params).expect("parameters");
            assert_eq!(Extensions::read(Some(field.as_bytes()), &params), expected, "{field} {query}");
        }
    }
}
