//! The points at which scripts are called, and the consumer as they see it.

use weir_plugin::{Phases, RequestCx};

/// A point at which scripts are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// While the configuration is loaded: there is no request.
    Load,
    /// APISIX's and Kong's `rewrite`.
    Rewrite,
    /// `access`.
    Access,
    /// Before each request to a node.
    BeforeProxy,
    /// With the head of the response.
    HeaderFilter,
    /// With each piece of the response's body.
    BodyFilter,
    /// After the end of the exchange.
    Log,
}

/// All hooks of requests.
pub(crate) const HOOKS: [Hook; 6] =
    [Hook::Rewrite, Hook::Access, Hook::BeforeProxy, Hook::HeaderFilter, Hook::BodyFilter, Hook::Log];

impl Hook {
    /// Its name in scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "init",
            Self::Rewrite => "rewrite",
            Self::Access => "access",
            Self::BeforeProxy => "before_proxy",
            Self::HeaderFilter => "header_filter",
            Self::BodyFilter => "body_filter",
            Self::Log => "log",
        }
    }

    /// True if a call may wait.
    pub(crate) const fn may_wait(self) -> bool {
        matches!(self, Self::Rewrite | Self::Access)
    }

    pub(crate) fn phases(self) -> Phases {
        match self {
            Self::Load => Phases::NONE,
            Self::Rewrite => Phases::REWRITE,
            Self::Access => Phases::ACCESS,
            Self::BeforeProxy => Phases::UPSTREAM,
            Self::HeaderFilter => Phases::RESPONSE,
            // The body is asked for when the head is known.
            Self::BodyFilter => Phases::RESPONSE.and(Phases::BODY),
            Self::Log => Phases::LOG,
        }
    }
}

/// Identity of a consumer, as scripts see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its id.
    pub id: String,
    /// Its user name.
    pub username: Option<String>,
    /// Its id in another system.
    pub custom_id: Option<String>,
}

/// Reader of the identity of the consumer that calls.
pub type Identify = fn(&RequestCx<'_>) -> Option<Identity>;
