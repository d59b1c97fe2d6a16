//! Entries of lists of paths: which requests each is about.

use regex::bytes::Regex;
use weir_plugin::Invalid;

use super::patterns;

/// Requests that an entry is about.
#[derive(Debug)]
pub(super) struct Which {
    pattern: Regex,
    /// Empty: every method.
    method: Box<[u8]>,
}

impl Which {
    /// `field` is the place of the entry in the configuration.
    fn compile(path: &str, method: &str, ignores_case: bool, field: &str) -> Result<Self, Invalid> {
        let pattern = patterns::compile(&patterns::pattern_of(path), ignores_case);
        let pattern = pattern.map_err(|error| Invalid::new(format!("{field}.path"), error))?;
        Ok(Self { pattern, method: method.as_bytes().into() })
    }

    fn takes(&self, method: &[u8], rest: &[u8]) -> bool {
        (self.method.is_empty() || *self.method == *method) && self.pattern.is_match(rest)
    }
}

/// Entries of one list, of which the first that takes a request counts.
#[derive(Debug)]
pub(super) struct Entries<T>(pub(super) Box<[(Which, T)]>);

impl<T> Entries<T> {
    pub(super) fn find(&self, method: &[u8], rest: &[u8]) -> Option<&T> {
        self.find_numbered(method, rest).map(|(_, entry)| entry)
    }

    /// The same with its number.
    pub(super) fn find_numbered(&self, method: &[u8], rest: &[u8]) -> Option<(usize, &T)> {
        let mut numbered = self.0.iter().enumerate();
        let found = numbered.find(|(_, (which, _))| which.takes(method, rest));
        found.map(|(number, (_, entry))| (number, entry))
    }
}

/// Compiles the entries of a list at a place of the configuration.
pub(super) fn entries<C, T>(
    field: &str,
    list: Vec<C>,
    ignores_case: bool,
    which: impl Fn(&C) -> (String, String),
    compile: impl Fn(C, &str) -> Result<T, Invalid>,
) -> Result<Entries<T>, Invalid> {
    let compiled = list.into_iter().enumerate().map(|(at, entry)| {
        let field = format!("{field}[{at}]");
        let (path, method) = which(&entry);
        Ok((Which::compile(&path, &method, ignores_case, &field)?, compile(entry, &field)?))
    });
    Ok(Entries(compiled.collect::<Result<_, Invalid>>()?))
}
