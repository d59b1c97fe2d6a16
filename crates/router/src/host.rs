use crate::route::Mode;

/// Host pattern of a route: `api.test`, `*.test`, `*`, or with a port; with ranks also `api.*`.
///
/// Hosts are compared in lower case. A pattern with a port is compared with the whole Host field; the colons inside
/// an IPv6 literal (`[::1]`) do not start a port.
#[derive(Debug)]
pub(crate) struct HostPattern {
    pub(crate) text: Box<str>,
    /// True if the host may begin with other text.
    pub(crate) wildcard: bool,
    /// True if the host may end with other text.
    pub(crate) open: bool,
    pub(crate) with_port: bool,
}

impl HostPattern {
    /// Sort key; patterns with equal keys take the same hosts.
    pub(crate) fn order(&self) -> (bool, bool, bool, &str) {
        (self.wildcard, self.open, self.with_port, &self.text)
    }

    pub(crate) fn parse(mode: Mode, pattern: &str) -> Result<HostPattern, String> {
        let open = pattern.strip_suffix(".*").filter(|text| mode == Mode::Ranked && !text.is_empty()).is_some();
        let text = if open { &pattern[..pattern.len() - 1] } else { pattern.strip_prefix('*').unwrap_or(pattern) };
        if pattern.is_empty() {
            return Err("host is empty".to_owned());
        }
        if text.contains('*') {
            return Err(format!("host '{pattern}' has a '*' that is not its first character"));
        }
        if let Some(bad) = text.chars().find(|c| !c.is_ascii_alphanumeric() && !"-._[]:".contains(*c)) {
            return Err(format!("host '{pattern}' has a character that no host has: '{bad}'"));
        }
        let behind_literal = text.rsplit(']').next().unwrap_or_default();
        Ok(HostPattern {
            text: text.to_ascii_lowercase().into(),
            wildcard: !open && text.len() < pattern.len(),
            open,
            with_port: behind_literal.contains(':'),
        })
    }

    /// True if the pattern takes a host. `host` has no port, `host_port` is the whole field.
    pub(crate) fn takes(&self, host: &[u8], host_port: &[u8]) -> bool {
        let host = if self.with_port { host_port } else { host };
        match (self.wildcard, self.open) {
            (true, _) => host.ends_with(self.text.as_bytes()),
            (_, true) => host.starts_with(self.text.as_bytes()),
            _ => host == self.text.as_bytes(),
        }
    }
}
