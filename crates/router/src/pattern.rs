use std::ops::Range;

use crate::needs::Needs;
use crate::route::Mode;

/// A parsed path of a route: literal text up to the first wildcard, and the rest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Length of the literal text before the first wildcard in bytes.
    pub(crate) prefix: usize,
    pub(crate) rest: Rest,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// No wildcard: the whole path is literal.
    Nothing,
    /// Any text, including none.
    Anything,
    /// Segments, the first of which is a wildcard.
    Segments(Box<[Segment]>),
    /// The regular expression of the whole path, kept with the route; the prefix is its literal beginning.
    Regex,
}

/// Text between two slashes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Literal(Box<str>),
    /// Exactly one segment that is not empty, with its name.
    Parameter(Box<str>),
    /// One or more segments, each of which may be empty, with an optional name.
    Star(Option<Box<str>>),
}

impl Pattern {
    pub(crate) fn parse(mode: Mode, path: &str) -> Pattern {
        if mode == Mode::Ranked {
            return match path.strip_prefix(REGEX) {
                Some(regex) => Pattern { prefix: literal_beginning(regex), rest: Rest::Regex },
                None => Pattern { prefix: path.len(), rest: Rest::Anything },
            };
        }
        let mut prefix = 0;
        for segment in path.split('/') {
            if wildcard(mode, segment).is_some() {
                return Pattern { prefix, rest: parse_rest(mode, &path[prefix..]) };
            }
            prefix += segment.len() + 1;
        }
        match path.strip_suffix('*') {
            Some(literal) => Pattern { prefix: literal.len(), rest: Rest::Anything },
            None => Pattern { prefix: path.len(), rest: Rest::Nothing },
        }
    }

    /// True if the pattern of `text` takes `path`; for explanations only.
    pub(crate) fn takes(&self, text: &str, path: &[u8]) -> bool {
        let Some(rest) = path.strip_prefix(self.key(text)) else {
            return false;
        };
        match &self.rest {
            Rest::Nothing => rest.is_empty(),
            Rest::Anything | Rest::Regex => true,
            Rest::Segments(segments) => capture(segments, rest, &mut |_, _| {}),
        }
    }

    /// Text that leads to the pattern in an index of prefixes.
    pub(crate) fn key<'t>(&self, text: &'t str) -> &'t [u8] {
        let text = if self.rest == Rest::Regex { text.strip_prefix(REGEX).unwrap_or(text) } else { text };
        text.as_bytes().get(..self.prefix).unwrap_or_default()
    }
}

/// Beginning of a path that is a regular expression, with [`Mode::Ranked`].
pub(crate) const REGEX: char = '~';

/// Length of the text with which everything begins that a regular expression takes from its start on. Text before a
/// quantifier may be absent, and before an alternative at the top level it may be another one.
fn literal_beginning(regex: &str) -> usize {
    let is_literal = |c: char| c.is_ascii_alphanumeric() || "/-_~%@!&=,;: ".contains(c);
    let end = regex.find(|c| !is_literal(c)).unwrap_or(regex.len());
    match regex.as_bytes().get(end) {
        _ if regex.contains('|') => 0,
        Some(b'?' | b'*' | b'{' | b'+') => end.saturating_sub(1),
        _ => end,
    }
}

/// Segments of a path that ends in its only, unnamed star and therefore stores none.
static ANYTHING: [Segment; 1] = [Segment::Star(None)];

impl Rest {
    /// Segments of the rest, even if there was no need to store them.
    pub(crate) fn segments(&self) -> &[Segment] {
        match self {
            Rest::Nothing | Rest::Regex => &[],
            Rest::Anything => &ANYTHING,
            Rest::Segments(segments) => segments,
        }
    }

    /// Needs of a candidate with this rest.
    pub(crate) fn needs(&self) -> Needs {
        let segments = match self {
            Rest::Segments(segments) => segments,
            Rest::Regex => return Needs::REGEX,
            Rest::Nothing | Rest::Anything => return Needs::default(),
        };
        let star = segments.iter().position(|segment| matches!(segment, Segment::Star(_)));
        let last = segments.len() - 1;
        Needs::CAPTURE
            | Needs::COMPARISON.when(star != Some(0) || last > 0)
            | Needs::INNER_STAR.when(star.is_some_and(|star| star < last))
    }
}

fn parse_rest(mode: Mode, rest: &str) -> Rest {
    if rest == "*" {
        return Rest::Anything;
    }
    let segment = |text| wildcard(mode, text).unwrap_or_else(|| Segment::Literal(Box::from(text)));
    Rest::Segments(rest.split('/').map(segment).collect())
}

fn wildcard(mode: Mode, segment: &str) -> Option<Segment> {
    if let Some(name) = segment.strip_prefix('*') {
        return Some(Segment::Star((!name.is_empty()).then(|| name.into())));
    }
    let name = segment.strip_prefix(':').filter(|_| mode == Mode::UriWithParameter)?;
    Some(Segment::Parameter(name.into()))
}

impl Segment {
    /// Name of the parameter that holds the matched text.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Segment::Literal(_) => None,
            Segment::Parameter(name) => Some(name),
            Segment::Star(name) => name.as_deref(),
        }
    }

    fn takes(&self, text: &[u8]) -> bool {
        match self {
            Segment::Literal(literal) => literal.as_bytes() == text,
            Segment::Parameter(_) => !text.is_empty(),
            Segment::Star(_) => true,
        }
    }
}

/// Matches all of `text` against `segments`, and passes the range of every wildcard with the index of its segment to
/// `found`. The ranges are valid only if the result is true.
///
/// Of several possible matches, the result is the one in which the first star is as long as possible, then the
/// second, as with a greedy regular expression. It is found without backtracking: there is no choice before the first
/// star, none behind the last star when read from the end, and segments between two stars are placed as far to the
/// right as possible. So no request can make a pattern with many stars expensive.
pub(crate) fn capture(segments: &[Segment], text: &[u8], found: &mut impl FnMut(usize, Range<usize>)) -> bool {
    let is_star = |segment: &Segment| matches!(segment, Segment::Star(_));
    let first_star = segments.iter().position(is_star).unwrap_or(segments.len());
    let mut start = Some(0);
    for (index, segment) in segments[..first_star].iter().enumerate() {
        let Some(begin) = start else {
            return false;
        };
        let end = text[begin..].iter().position(|byte| *byte == b'/').map_or(text.len(), |slash| begin + slash);
        if !segment.takes(&text[begin..end]) {
            return false;
        }
        found(index, begin..end);
        start = (end < text.len()).then_some(end + 1);
    }
    if first_star == segments.len() {
        return start.is_none();
    }
    let Some(start) = start else {
        return false;
    };
    let mut star = segments.iter().rposition(is_star).unwrap_or(first_star);
    let Some(mut end) = backward(segments, star + 1..segments.len(), text, start..text.len(), found) else {
        return false;
    };
    while star != first_star {
        let before = segments[..star].iter().rposition(is_star).unwrap_or(first_star);
        let mut cut = end;
        let begin = loop {
            let Some(slash) = last_slash(text, start..cut) else {
                return false;
            };
            cut = slash;
            if let Some(begin) = backward(segments, before + 1..star, text, start..cut, found) {
                break begin;
            }
        };
        found(star, cut + 1..end);
        (star, end) = (before, begin);
    }
    found(star, start..end);
    true
}

/// Matches the segments of `which` at the end of `text[within]`, and returns the position of the slash before them.
fn backward(
    segments: &[Segment],
    which: Range<usize>,
    text: &[u8],
    within: Range<usize>,
    found: &mut impl FnMut(usize, Range<usize>),
) -> Option<usize> {
    let mut end = within.end;
    for index in which.rev() {
        let slash = last_slash(text, within.start..end)?;
        if !segments[index].takes(&text[slash + 1..end]) {
            return None;
        }
        found(index, slash + 1..end);
        end = slash;
    }
    Some(end)
}

fn last_slash(text: &[u8], within: Range<usize>) -> Option<usize> {
    let start = within.start;
    text[within].iter().rposition(|byte| *byte == b'/').map(|place| start + place)
}

/// Warning about a path with text that looks like a wildcard but is literal, or the reverse; `None` if there is no
/// such text. Used when a configuration is loaded.
pub fn literal_parameter(mode: Mode, path: &str) -> Option<String> {
    if !path.starts_with(['/', '*']) {
        return Some(format!("'{path}' can never match: the path of a request begins with '/'"));
    }
    let last = path.split('/').count() - 1;
    let has_wildcard = path.split('/').any(|segment| wildcard(mode, segment).is_some());
    path.split('/').enumerate().find_map(|(index, segment)| match wildcard(mode, segment) {
        Some(Segment::Star(Some(name))) if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') => {
            Some(format!("'{name}' behind the '*' in '{path}' is only a name: the star takes anything, with or without it"))
        }
        Some(_) => None,
        None if segment.len() > 1 && segment.starts_with(':') => Some(format!(
            "'{segment}' in '{path}' is matched by its letters: parameters need the router radixtree_uri_with_parameter"
        )),
        None if segment.contains('*') && (has_wildcard || index != last || !ends_in_its_only_star(segment)) => {
            Some(format!("the '*' in '{segment}' of '{path}' is matched by its letters: it begins no segment and ends no plain path"))
        }
        None => None,
    })
}

fn ends_in_its_only_star(segment: &str) -> bool {
    segment.find('*') == Some(segment.len() - 1)
}
