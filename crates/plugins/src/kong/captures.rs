//! Groups of the regular expression that took a route's path, in the form in which the path was sent: kept by the plugin
//! `route` for templates and for upstreams that hash one of them.

use std::sync::Arc;

use regex::bytes::Regex;
use weir_plugin::{Captures, HookCx, RequestCx};

use super::route::encoded_length;

/// The groups of a regular expression.
#[derive(Debug)]
pub(super) struct Groups {
    regex: Regex,
    names: Arc<[Option<Box<str>>]>,
}

impl Groups {
    /// The groups of this expression.
    pub(super) fn new(regex: Regex) -> Self {
        let names = regex.capture_names().map(|name| name.map(Into::into)).collect();
        Self { regex, names }
    }

    /// Keeps the groups of the path of a request.
    pub(super) fn keep(&self, cx: &mut RequestCx<'_>) {
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
        cx.set_captures(Captures::new(Arc::clone(&self.names), spans));
    }
}

/// The group with this number; 0 is the whole match.
pub(super) fn numbered<'c>(cx: &'c RequestCx<'_>, number: usize) -> Option<&'c [u8]> {
    let view = cx.view();
    view.captures()?.numbered(view.request().encoded_path(), number)
}

/// The group with this name.
pub(super) fn named<'c>(cx: &'c RequestCx<'_>, name: &str) -> Option<&'c [u8]> {
    let view = cx.view();
    view.captures()?.named(view.request().encoded_path(), name)
}
