//! Parts that plugins that authenticate share.

use std::sync::LazyLock;

use weir_plugin::{BuildCx, ConsumerMatch, Flow, HookCx, PerRequest, RequestCx};

use super::body;
use super::consumer::Told;

/// Groups of a caller that has been authenticated without a consumer.
type Groups = Box<[Box<str>]>;

/// The groups, where a caller without a consumer has been authenticated.
static WITHOUT_CONSUMER: LazyLock<PerRequest<Groups>> = LazyLock::new(PerRequest::new);

/// Groups that a plugin has found of a caller without a consumer; `None` where no such caller has been authenticated.
pub(super) fn groups_without_consumer(cx: &impl HookCx) -> Option<&[Box<str>]> {
    WITHOUT_CONSUMER.get(cx).map(|groups| &**groups)
}

/// Outcome of authentication: the caller, the anonymous consumer or a refusal.
#[derive(Debug)]
pub(super) struct Caller {
    told: Told,
    /// Number of the consumer as whom requests without valid credentials go on.
    anonymous: Option<u32>,
    /// True if one is configured, be it there or not.
    has_anonymous: bool,
    /// Value of `WWW-Authenticate`.
    challenge: Vec<u8>,
    /// Position of the plugin in the registry.
    pub(super) position: u8,
}

impl Caller {
    pub(super) fn new(anonymous: Option<&str>, challenge: String, build: &BuildCx<'_>) -> Self {
        let anonymous = anonymous.filter(|name| !name.is_empty());
        Self {
            told: Told::new(),
            has_anonymous: anonymous.is_some(),
            anonymous: anonymous.and_then(|name| build.consumer("anonymous", name)),
            challenge: challenge.into_bytes(),
            position: build.position,
        }
    }

    /// True if another plugin has authenticated the request, so that this one has nothing to say: where plugins have an
    /// anonymous consumer, one of them is enough.
    pub(super) fn is_done(&self, cx: &RequestCx<'_>) -> bool {
        let is_known = |who: ConsumerMatch| Some(who.consumer) != self.anonymous;
        self.has_anonymous && cx.consumer().map_or_else(|| groups_without_consumer(cx).is_some(), is_known)
    }

    /// Says that a caller without a consumer has this credential, if any, and belongs to these groups.
    pub(super) fn accept_alone(&self, cx: &mut RequestCx<'_>, credential: Option<&[u8]>, groups: Groups) -> Flow {
        self.told.authenticate_alone(cx, credential);
        WITHOUT_CONSUMER.put(cx, groups);
        Flow::Continue
    }

    /// Says who calls. Without `credential` the upstream is told the id of the credential.
    pub(super) fn accept(&self, cx: &mut RequestCx<'_>, who: ConsumerMatch, credential: Option<&[u8]>) -> Flow {
        let (mut text, tables) = (cx.take_scratch(), cx.tables());
        let id = || tables.as_ref().and_then(|tables| tables.consumers.credential(who)).map(str::as_bytes);
        text.extend_from_slice(credential.or_else(id).unwrap_or_default());
        self.told.authenticate(cx, who, Some(&text));
        cx.put_scratch(text);
        Flow::Continue
    }

    /// Lets the request go on as the anonymous consumer, if there is one.
    pub(super) fn fall_back(&self, cx: &mut RequestCx<'_>) -> bool {
        let Some(consumer) = self.anonymous else { return false };
        self.told.authenticate(cx, ConsumerMatch { consumer, credential: None }, None);
        true
    }

    /// Refuses a request with 401, unless there is an anonymous consumer.
    pub(super) fn refuse(&self, cx: &mut RequestCx<'_>, message: &str) -> Flow {
        if self.fall_back(cx) {
            return Flow::Continue;
        }
        body::error(cx, 401, message, &[("WWW-Authenticate", &self.challenge)])
    }
}

/// Checks a realm, which goes into a quoted text.
pub(super) fn challenge(scheme: &str, realm: Option<&str>) -> String {
    match realm {
        Some(realm) => format!("{scheme} realm=\"{}\"", realm.replace(['"', '\\', '\r', '\n'], "")),
        None => scheme.to_owned(),
    }
}
