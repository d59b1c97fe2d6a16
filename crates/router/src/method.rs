use std::fmt;
use std::ops::BitOr;

/// A set of methods that routes may name.
///
/// The list of methods is closed, as in APISIX. A request with another method is still served by routes that name
/// none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MethodSet(u16);

const NAMES: [&str; 10] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];

impl MethodSet {
    /// The empty set: a route with this set takes every method.
    pub const ANY: MethodSet = MethodSet(0);

    /// Set of the one method with this name; methods are case-sensitive (RFC 9110 section 9.1). `None` for a method
    /// that is not in the list.
    pub fn named(name: &str) -> Option<MethodSet> {
        let method = MethodSet::of(name.as_bytes());
        (!method.is_empty()).then_some(method)
    }

    /// Names that [`MethodSet::named`] knows.
    pub fn names() -> &'static [&'static str] {
        &NAMES
    }

    /// True if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if a route with this set takes a request with `method`.
    pub fn admits(self, method: &[u8]) -> bool {
        self.is_empty() || self.contains(MethodSet::of(method))
    }

    /// True if the set contains one of the methods of `other`.
    pub(crate) fn contains(self, other: MethodSet) -> bool {
        self.0 & other.0 != 0
    }

    /// Set of one request method; empty for a method that no route can name.
    pub(crate) fn of(method: &[u8]) -> MethodSet {
        let bit = match method {
            b"GET" => 0,
            b"POST" => 1,
            b"PUT" => 2,
            b"DELETE" => 3,
            b"PATCH" => 4,
            b"HEAD" => 5,
            b"OPTIONS" => 6,
            b"CONNECT" => 7,
            b"TRACE" => 8,
            b"PURGE" => 9,
            _ => return MethodSet(0),
        };
        MethodSet(1 << bit)
    }
}

impl BitOr for MethodSet {
    type Output = MethodSet;

    fn bitor(self, other: MethodSet) -> MethodSet {
        MethodSet(self.0 | other.0)
    }
}

impl FromIterator<MethodSet> for MethodSet {
    fn from_iter<I: IntoIterator<Item = MethodSet>>(sets: I) -> MethodSet {
        sets.into_iter().fold(MethodSet::ANY, MethodSet::bitor)
    }
}

/// Names separated by commas.
impl fmt::Display for MethodSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for name in NAMES.iter().filter(|name| self.contains(MethodSet::of(name.as_bytes()))) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        Ok(())
    }
}
