//! Groups of the regular expression that took a route's path, for templates: put by the plugin `route`, in the form in which
//! the path was sent.

use std::sync::{Arc, LazyLock};

use regex::bytes::Regex;
use weir_plugin::{HookCx, PerRequest, RequestCx};

use super::route::encoded_length;

static HELD: LazyLock<PerRequest<Captures>> = LazyLock::new(PerRequest::new);

/// The groups of one path.
#[derive(Debug)]
struct Captures {
    groups: Arc<Groups>,
    /// Positions in the encoded path, by the numbers of groups.
    spans: Vec<Option<(usize, usize)>>,
}

/// The groups of a regular expression.
#[derive(Debug)]
pub(super) struct Groups {
    regex: Regex,
    names: Vec<Option<Box<str>>>,
}

impl Groups {
    /// The groups of this expression.
    pub(super) fn new(regex: Regex) -> Self {
        let names = regex.capture_names().map(|name| name.map(Into::into)).collect();
        Self { regex, names }
    }

    /// Keeps the groups of the path of a request.
    pub(super) fn keep(self: &Arc<Self>, cx: &mut RequestCx<'_>) {
        let (path, encoded) = (cx.request().path(), cx.request().encoded_path());
        let mut places = self.regex.capture_locations();
        if self.regex.captures_read(&mut places, path).is_none() {
            return;
        }
        let span = |number: usize| {
            let (begin, end) = places.get(number)?;
            Some((encoded_length(path, encoded, begin), encoded_length(path, encoded, end)))
        };
        let spans = (0..places.len()).map(span).collect();
        HELD.put(cx, Captures { groups: Arc::clone(self), spans });
    }
}

/// The group with this number; 0 is the whole match.
pub(super) fn numbered<'c>(cx: &'c RequestCx<'_>, number: usize) -> Option<&'c [u8]> {
    let (begin, end) = HELD.get(cx)?.spans.get(number).copied().flatten()?;
    cx.view().request().encoded_path().get(begin..end)
}

/// The group with this name.
pub(super) fn named<'c>(cx: &'c RequestCx<'_>, name: &str) -> Option<&'c [u8]> {
    let groups = &HELD.get(cx)?.groups;
    let number = groups.names.iter().position(|held| held.as_deref() == Some(name))?;
    numbered(cx, number)
}
