//! The order of routes, as a running Kong 3.9 has it with `router_flavor = traditional_compatible`.
//!
//! Each path of a route has a number of 64 bits, and the greatest wins. Kong shifts two parts of it as numbers of 32
//! bits, so the order differs from the documented one: bit 31 of the lower half spreads over the whole upper half.

/// Bit of the ranks of expressions.
const EXPRESSION: u64 = 1 << 62;

/// Conditions of a route that its rank follows from.
#[derive(Clone, Debug, Default)]
pub struct Conditions<'a> {
    /// Hosts; a `*` stands for a wildcard.
    pub hosts: &'a [String],
    /// True if the route names methods.
    pub has_methods: bool,
    /// Number of header names.
    pub headers: usize,
    /// True if the route names SNIs.
    pub has_snis: bool,
    /// Paths; `~` begins a regular expression.
    pub paths: &'a [String],
    /// `regex_priority`.
    pub regex_priority: u64,
}

impl Conditions<'_> {
    /// Rank of one of the paths; that of a route without paths for an empty one.
    #[must_use]
    pub fn rank(&self, path: &str) -> u64 {
        let has_plain_hosts = !self.hosts.is_empty() && !self.hosts.iter().any(|host| host.contains('*'));
        let kinds = [!self.hosts.is_empty(), self.has_methods, self.headers > 0, self.has_snis, !self.paths.is_empty()];
        let kinds = kinds.iter().filter(|given| **given).count() as u64;
        let is_regex = path.starts_with('~');
        let last = if is_regex { self.regex_priority << 19 } else { (path.len() as u64).min((1 << 19) - 1) };
        let low = (kinds << 29 | (self.headers.min(255) as u64) << 20 | last) & u64::from(u32::MAX);
        // The lower half becomes a signed number of 32 bits, which is then made one of 64 bits.
        let spread = (low as u32).cast_signed();
        let all = i64::from(spread).cast_unsigned() | u64::from(has_plain_hosts) << 60 | u64::from(is_regex) << 51;
        // The upper bits are all set or all clear, so that the order is that of the others. They are for expressions.
        all & (EXPRESSION - 1)
    }

    /// Rank of a route with an expression, which comes before all without one.
    #[must_use]
    pub fn of_expression(priority: u64) -> u64 {
        EXPRESSION | priority.min(EXPRESSION - 1)
    }
}
