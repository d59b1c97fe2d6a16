/// Host pattern of a route: `api.test`, `*.test`, `*`, or with a port.
///
/// Hosts are compared in lower case. A pattern with a port is compared with the whole Host field; the colons inside
/// an IPv6 literal (`[::1]`) do not start a port.
#[derive(Debug)]
pub(crate) struct HostPattern {
    pub(crate) text: Box<str>,
    pub(crate) wildcard: bool,
    pub(crate) with_port: bool,
}

impl HostPattern {
    /// Sort key; patterns with equal keys take the same hosts.
    pub(crate) fn order(&self) -> (bool, bool, &str) {
        (self.wildcard, self.with_port, &self.text)
    }

    pub(crate) fn parse(pattern: &str) -> Result<HostPattern, String> {
        let text = pattern.strip_prefix('*').unwrap_or(pattern);
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
            wildcard: text.len() < pattern.len(),
            with_port: behind_literal.contains(':'),
        })
    }

    /// True if the pattern takes a host. `host` has no port, `host_port` is the whole field.
    pub(crate) fn takes(&self, host: &[u8], host_port: &[u8]) -> bool {
        let host = if self.with_port { host_port } else { host };
        if self.wildcard { host.ends_with(self.text.as_bytes()) } else { host == self.text.as_bytes() }
    }
}
