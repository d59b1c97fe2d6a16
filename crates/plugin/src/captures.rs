//! Groups of the regular expression that took the path of a request, which are told as `$uri_param_NAME`.

use std::sync::Arc;

/// The groups of one path, by positions in its encoded form.
#[derive(Debug, Clone)]
pub struct Captures {
    names: Arc<[Option<Box<str>>]>,
    spans: Vec<Option<(usize, usize)>>,
}

impl Captures {
    /// The groups with these names, by their numbers; group 0 is the whole match.
    #[must_use]
    pub fn new(names: Arc<[Option<Box<str>>]>, spans: Vec<Option<(usize, usize)>>) -> Self {
        Self { names, spans }
    }

    /// The group with this number; `path` is the encoded path of the request.
    #[must_use]
    pub fn numbered<'p>(&self, path: &'p [u8], number: usize) -> Option<&'p [u8]> {
        let (begin, end) = self.spans.get(number).copied().flatten()?;
        path.get(begin..end)
    }

    /// The group with this name.
    #[must_use]
    pub fn named<'p>(&self, path: &'p [u8], name: &str) -> Option<&'p [u8]> {
        let number = self.names.iter().position(|held| held.as_deref() == Some(name))?;
        self.numbered(path, number)
    }
}
