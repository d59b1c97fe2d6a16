use std::ops::BitOr;

/// Checks of a candidate that require access to the route itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct Needs(u8);

impl Needs {
    /// The host is a condition.
    pub(crate) const HOST: Needs = Needs(1);
    pub(crate) const REMOTE_ADDR: Needs = Needs(2);
    pub(crate) const VARS: Needs = Needs(4);
    /// The path has a pattern with wildcards to capture.
    pub(crate) const CAPTURE: Needs = Needs(8);
    /// The path takes only some of the paths that begin with its text before the first wildcard.
    pub(crate) const COMPARISON: Needs = Needs(16);
    /// The path continues behind a star.
    pub(crate) const INNER_STAR: Needs = Needs(32);
    /// The path is a regular expression.
    pub(crate) const REGEX: Needs = Needs(64);

    /// Returns `self` if the condition holds, else no needs.
    pub(crate) fn when(self, so: bool) -> Needs {
        if so { self } else { Needs(0) }
    }

    #[inline]
    pub(crate) fn nothing(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn has(self, need: Needs) -> bool {
        self.0 & need.0 != 0
    }
}

impl BitOr for Needs {
    type Output = Needs;

    fn bitor(self, other: Needs) -> Needs {
        Needs(self.0 | other.0)
    }
}
