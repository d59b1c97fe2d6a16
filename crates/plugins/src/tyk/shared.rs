//! Parts that the plugins of one API share: its listen path, and the values that one plugin hands to the next.

use std::sync::Arc;

use regex::bytes::Regex;
use weir_plugin::{BuildCx, PerRequest, Request};

use super::patterns::{compile, is_plain, pattern_of};
use super::sessions::Session;

/// State of a request when its chain has come to a plugin.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The session of the caller; none without a key.
    pub(super) session: Option<Arc<Session>>,
    /// Name under which the requests of the caller count, where it is not the session's.
    pub(super) identity: Option<String>,
    /// Number of the version.
    pub(super) version: usize,
    /// Bytes of the path behind the listen path that name the version and are taken off.
    pub(super) skipped: usize,
    /// True for a path in the list `ignored`: neither key nor limits.
    pub(super) is_ignored: bool,
    /// Numbers for `X-RateLimit-*`: limit, remaining, reset.
    pub(super) told: [i64; 3],
    /// True if the answer was mocked, which has no such fields.
    pub(super) is_mocked: bool,
}

/// Place of [`Known`] on an exchange, one for the plugins of an API.
pub(super) fn place(build: &BuildCx<'_>, api: &str) -> Arc<PerRequest<Known>> {
    build.states.get_or_create(&format!("tyk request {api}"), PerRequest::new)
}

/// The listen path of an API.
#[derive(Debug)]
pub(super) enum ListenPath {
    /// Its length.
    Plain(usize),
    /// One with parameters or expressions.
    Regex(Regex),
}

impl ListenPath {
    pub(super) fn compile(path: &str) -> Result<Self, String> {
        match is_plain(path) {
            true => Ok(Self::Plain(path.len())),
            false => Ok(Self::Regex(compile(&format!("^{}", pattern_of(path)), false)?)),
        }
    }

    /// Length of the listen path at the beginning of a path.
    pub(super) fn length(&self, path: &[u8]) -> usize {
        match self {
            Self::Plain(length) => (*length).min(path.len()),
            Self::Regex(regex) => regex.find(path).map_or(0, |found| found.end()),
        }
    }

    /// Appends the path behind the listen path, with a slash at its beginning.
    pub(super) fn write_rest(&self, request: &Request, out: &mut Vec<u8>) {
        let path = request.path();
        let rest = path.get(self.length(path)..).unwrap_or_default();
        if !rest.starts_with(b"/") {
            out.push(b'/');
        }
        out.extend_from_slice(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::ListenPath;
    use crate::tyk::patterns::is_plain;

    #[test]
    fn a_listen_path_has_a_length() {
        for (listen, path, length) in
            [("/kl/", "/kl/a", 4), ("/", "/a", 1), ("/rx/{id}/x/", "/rx/12/x/a", 9), ("/rx/{id}", "/rx/12/x", 6)]
        {
            let compiled = ListenPath::compile(listen).expect("a path");
            assert_eq!(
                (compiled.length(path.as_bytes()), is_plain(listen)),
                (length, !listen.contains('{')),
                "{listen}"
            );
        }
    }
}
