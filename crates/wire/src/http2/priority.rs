//! Priorities of responses (RFC 9218): the `priority` field and PRIORITY_UPDATE.

/// Priority of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Priority {
    /// Urgency, 0 (first) to 7 (last).
    pub urgency: u8,
    /// True if the client can use the response piece by piece, so that it may share bandwidth with its equals.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Self { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// Reads the parameters `u` and `i` of a field value or of PRIORITY_UPDATE, a dictionary of RFC 8941.
    ///
    /// Unknown parameters, and values of another type or out of range, count as absent (RFC 9218 section 4). The last
    /// of several parameters with one name counts.
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        let mut priority = Self::default();
        for member in crate::list(value) {
            // Parameters of a member have no meaning here.
            let member = member.split(|b| *b == b';').next().unwrap_or_default();
            match crate::trim_ows(member) {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::Priority;

    #[test]
    fn parameters_are_read_and_others_count_as_absent() {
        for (value, urgency, incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=7, i", 7, true),
            ("i=?0,u=1", 1, false),
            ("i=?1", 3, true),
            ("u=5;x=1, i;y", 5, true),
            ("u=8", 3, false),
            ("u=-1", 3, false),
            ("u=10", 3, false),
            ("u=\"1\", I, U=1", 3, false),
            ("u=1, u=2", 2, false),
            ("x=\"a, \", u=2", 2, false),
        ] {
            assert_eq!(Priority::parse(value.as_bytes()), Priority { urgency, incremental }, "{value}");
        }
    }
}
