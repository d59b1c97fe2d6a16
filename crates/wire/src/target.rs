//! Request targets (RFC 9112 section 3.2), and the normal form of a path.
//!
//! A path is normalised once: routes match the normal form, plugins see it and the upstream receives it.
//! Normalisation decodes percent-encoding, merges `//` and resolves dot segments. A path that cannot be normalised
//! unambiguously is refused: invalid percent-encoding, an encoded NUL, `..` above the root, a dot segment with
//! `;parameters` (which some servers strip before they resolve it) or beside a kept `%2F` (which some servers decode
//! first), and bytes that are not allowed in a target.

use crate::authority;
use crate::{Reject, Span};

/// Options for normalising paths; the defaults are those of nginx and APISIX.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathRules {
    /// Treats `/a/` as `/a`; the root is kept.
    pub delete_tail_slash: bool,
    /// Removes `;parameters` from every segment, as servlet containers do.
    pub servlet: bool,
    /// Keeps `%2F` encoded, so that it does not separate segments.
    pub keep_encoded_slash: bool,
}

/// A split target, as spans of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Target {
    /// Form of the target.
    pub form: Form,
    /// Authority of an absolute target: host and port.
    pub authority: Option<Span>,
    /// Path as received; `/` if an absolute target has none.
    pub path: Option<Span>,
    /// Query without its `?`.
    pub query: Option<Span>,
    /// True if the path already is in normal form, so it can be used unchanged.
    pub normal: bool,
    /// True if the query may be forwarded unchanged.
    pub query_clean: bool,
}

/// Forms of a target that a gateway serves. Authority-form belongs to CONNECT, which is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// `/path?query`
    #[default]
    Origin,
    /// `http://host/path`
    Absolute,
    /// `*`
    Asterisk,
}

/// Class of a byte in a target.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Class {
    /// Allowed unchanged.
    Plain = 0,
    /// Needs processing: `%`, `;`, or a byte that is forwarded percent-encoded.
    Special = 1,
    /// Not allowed in a target.
    Bad = 2,
}

const CLASSES: [Class; 256] = {
    let mut t = [Class::Bad; 256];
    let mut b = 0x21;
    while b < 256 {
        t[b] = if is_pchar(b as u8) || b == b'/' as usize { Class::Plain } else { Class::Special };
        b += 1;
    }
    t[b'%' as usize] = Class::Special;
    t[b';' as usize] = Class::Special;
    t[b'#' as usize] = Class::Bad;
    t[0x7f] = Class::Bad;
    t
};

/// Unreserved, sub-delims, `:` and `@` (RFC 3986 section 3.3).
const fn is_pchar(b: u8) -> bool {
    matches!(b, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')'
        | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@')
}

fn class(b: u8) -> Class {
    CLASSES[b as usize]
}

/// Splits a target.
///
/// # Errors
/// 400 for authority-form, an unknown scheme, user information, a fragment, or a byte that is not allowed.
pub fn split(target: &[u8]) -> Result<Target, Reject> {
    let (mut out, start) = match target {
        [b'/', ..] => (Target::default(), 0),
        b"*" => return Ok(Target { form: Form::Asterisk, ..Target::default() }),
        _ => split_absolute(target)?,
    };
    let rest = target.get(start..).unwrap_or_default();
    let (path_len, normal) = scan_path(rest)?;
    if path_len > 0 {
        out.path = Some(Span::new(start, start + path_len));
    }
    out.normal = normal;
    if let Some(query) = rest.get(path_len + 1..) {
        out.query = Some(Span::new(start + path_len + 1, target.len()));
        out.query_clean = scan_query(query)?;
    }
    Ok(out)
}

/// Splits `http://host[:port]` with an optional path (RFC 9112 section 3.2.2).
fn split_absolute(target: &[u8]) -> Result<(Target, usize), Reject> {
    const SCHEMES: [&[u8]; 2] = [b"http://", b"https://"];
    let Some(scheme) = SCHEMES.iter().find(|s| target.get(..s.len()).is_some_and(|t| t.eq_ignore_ascii_case(s))) else {
        return Err(Reject::bad("request target is neither a path nor an http URI"));
    };
    let start = scheme.len();
    let rest = target.get(start..).unwrap_or_default();
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    authority::parse(rest.get(..end).unwrap_or_default())?;
    let authority = Some(Span::new(start, start + end));
    Ok((Target { form: Form::Absolute, authority, ..Target::default() }, start + end))
}

/// Length of the path, and true if it is in normal form: only plain bytes, no empty segment and no dot segment.
fn scan_path(target: &[u8]) -> Result<(usize, bool), Reject> {
    // The loop has a single branch per byte, for the end of the path: nearly every path is scanned to its end.
    let (mut classes, mut slow) = (0, false);
    let (mut before, mut len) = (0, 0);
    for &b in target {
        if b == b'?' {
            break;
        }
        len += 1;
        classes |= class(b) as u8;
        // `//` and every segment that begins with a dot take the slow path.
        slow |= (before == b'/') & ((b == b'/') | (b == b'.'));
        before = b;
    }
    if classes & Class::Bad as u8 != 0 {
        return Err(Reject::bad("byte that may not stand in a request target"));
    }
    Ok((len, classes == 0 && !slow))
}

fn scan_query(query: &[u8]) -> Result<bool, Reject> {
    let mut clean = true;
    for &b in query {
        match b {
            0x80.. => clean = false,
            b'?' | b'/' => {}
            _ if class(b) == Class::Bad => return Err(Reject::bad("byte that may not stand in a request target")),
            _ => {}
        }
    }
    Ok(clean)
}

/// Normalises a path: `decoded` receives the decoded form, `encoded` the form to forward. Both are cleared first and
/// begin with `/`.
///
/// # Errors
/// 400 for a path that the module documentation lists as refused.
pub fn normalise(path: &[u8], rules: PathRules, decoded: &mut Vec<u8>, encoded: &mut Vec<u8>) -> Result<(), Reject> {
    decoded.clear();
    encoded.clear();
    decoded.push(b'/');
    encoded.push(b'/');
    // Offset of the current segment in each form.
    let (mut seg, mut seg_encoded) = (1, 1);
    let mut bytes = path.iter().skip(1);
    loop {
        let (b, escaped) = match bytes.next() {
            Some(b'%') => (unescape(bytes.next(), bytes.next())?, true),
            Some(&b) => (b, false),
            None => break,
        };
        if b == 0 {
            return Err(Reject::bad("encoded NUL in the path"));
        }
        if b == b'/' && escaped && rules.keep_encoded_slash {
            decoded.extend_from_slice(b"%2F");
            encoded.extend_from_slice(b"%2F");
        } else if b == b'/' {
            if end_segment(rules, decoded, encoded, seg, seg_encoded)? {
                decoded.push(b'/');
                encoded.push(b'/');
            }
            (seg, seg_encoded) = (decoded.len(), encoded.len());
        } else {
            decoded.push(b);
            push_encoded(encoded, b);
        }
    }
    end_segment(rules, decoded, encoded, seg, seg_encoded)?;
    if rules.delete_tail_slash && decoded.len() > 1 && decoded.last() == Some(&b'/') {
        decoded.pop();
        encoded.pop();
    }
    Ok(())
}

/// Interpretation of a path with `;` or `\` by other servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Removes `;parameters` from every segment, as servlet containers do.
    StripParameters,
    /// Treats `\` as `/`, as Windows servers do.
    SlashBackslashes,
    /// Treats `\` as `/`, then removes `;parameters`.
    SlashThenStrip,
    /// Removes `;parameters` up to the next `/`, then treats `\` as `/`.
    StripThenSlash,
}

impl Reading {
    /// All interpretations other than the gateway's own.
    pub const ALL: [Self; 4] =
        [Self::StripParameters, Self::SlashBackslashes, Self::SlashThenStrip, Self::StripThenSlash];

    /// Path as such a server interprets it, from the normal form `encoded`. The result has to be normalised again.
    #[must_use]
    pub fn of(self, encoded: &[u8]) -> Vec<u8> {
        match self {
            Self::StripParameters => cut_parameters(encoded),
            Self::SlashBackslashes => turn(encoded),
            Self::SlashThenStrip => cut_parameters(&turn(encoded)),
            Self::StripThenSlash => turn(&cut_parameters(encoded)),
        }
    }
}

/// Removes `;` and the rest of the segment after it.
fn cut_parameters(path: &[u8]) -> Vec<u8> {
    let mut within = false;
    let kept = path.iter().copied().filter(|b| {
        within = *b != b'/' && (within || *b == b';');
        !within
    });
    kept.collect()
}

/// Replaces `\`, which is percent-encoded in a normal form, by `/`.
fn turn(path: &[u8]) -> Vec<u8> {
    let mut turned = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = memchr::memmem::find(rest, b"%5C") {
        turned.extend_from_slice(rest.get(..at).unwrap_or_default());
        turned.push(b'/');
        rest = rest.get(at + 3..).unwrap_or_default();
    }
    turned.extend_from_slice(rest);
    turned
}

/// True if a decoded path contains a byte that other servers interpret differently (see [`Reading`]).
#[must_use]
pub fn has_other_readings(decoded: &[u8]) -> bool {
    memchr::memchr2(b';', b'\\', decoded).is_some()
}

/// Resolves the segment that begins at `seg`; returns true if a `/` has to follow it.
fn end_segment(
    rules: PathRules,
    decoded: &mut Vec<u8>,
    encoded: &mut Vec<u8>,
    seg: usize,
    seg_encoded: usize,
) -> Result<bool, Reject> {
    if rules.servlet
        && let Some(cut) = decoded.get(seg..).and_then(|s| memchr::memchr(b';', s))
    {
        decoded.truncate(seg + cut);
        let cut = encoded.get(seg_encoded..).and_then(|s| memchr::memchr(b';', s)).unwrap_or_default();
        encoded.truncate(seg_encoded + cut);
    }
    if rules.keep_encoded_slash && hides_dot_segment(encoded.get(seg_encoded..).unwrap_or_default()) {
        return Err(Reject::bad("dot segment beside an encoded slash"));
    }
    match decoded.get(seg..).unwrap_or_default() {
        [] => Ok(false),
        b"." => {
            decoded.truncate(seg);
            encoded.truncate(seg_encoded);
            Ok(false)
        }
        b".." => {
            // Both forms have the same separators, so removing the last segment works the same for both.
            pop_segment(decoded, seg)?;
            pop_segment(encoded, seg_encoded)?;
            Ok(false)
        }
        [b'.', b';', ..] | [b'.', b'.', b';', ..] => Err(Reject::bad("dot segment with parameters")),
        _ => Ok(true),
    }
}

/// True if decoding the encoded slashes of a segment would reveal a dot segment.
fn hides_dot_segment(mut segment: &[u8]) -> bool {
    let mut hides = false;
    let mut divided = false;
    while let Some(at) = memchr::memmem::find(segment, b"%2F") {
        let (part, rest) = segment.split_at(at);
        hides |= is_dot_segment(part);
        divided = true;
        segment = rest.get(3..).unwrap_or_default();
    }
    divided && (hides || is_dot_segment(segment))
}

/// True for `.` and `..`, with or without parameters.
fn is_dot_segment(part: &[u8]) -> bool {
    matches!(part, b"." | b".." | [b'.', b';', ..] | [b'.', b'.', b';', ..])
}

/// Removes the segment that begins at `seg` and the one before it.
fn pop_segment(path: &mut Vec<u8>, seg: usize) -> Result<(), Reject> {
    let parent = path.get(..seg.saturating_sub(1)).and_then(|p| memchr::memrchr(b'/', p));
    let parent = parent.ok_or(Reject::bad("path leads above the root"))?;
    path.truncate(parent + 1);
    Ok(())
}

fn unescape(high: Option<&u8>, low: Option<&u8>) -> Result<u8, Reject> {
    let digit =
        |b: Option<&u8>| b.and_then(|b| (*b as char).to_digit(16)).ok_or(Reject::bad("broken percent encoding"));
    Ok((digit(high)? << 4 | digit(low)?) as u8)
}

/// Appends a decoded path byte in its forwarded form: percent-encoded unless it is allowed unchanged.
pub fn push_encoded(out: &mut Vec<u8>, b: u8) {
    if is_pchar(b) {
        out.push(b);
    } else {
        push_escape(out, b);
    }
}

/// Appends a byte as `%` and two hexadecimal digits.
pub fn push_escape(out: &mut Vec<u8>, b: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'%', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
}

/// Appends a decoded path in its forwarded form; `/` separates segments.
pub fn encode_path(path: &[u8], out: &mut Vec<u8>) {
    for &b in path {
        if b == b'/' { out.push(b) } else { push_encoded(out, b) }
    }
}

/// Appends a query in which bytes not allowed in a target are percent-encoded; other bytes are unchanged.
pub fn encode_query(query: &[u8], out: &mut Vec<u8>) {
    for &b in query {
        if matches!(b, 0..=0x20 | 0x7f.. | b'#') { push_escape(out, b) } else { out.push(b) }
    }
}

/// True if a path is in normal form.
#[must_use]
pub fn is_normal(path: &[u8]) -> bool {
    path.first() == Some(&b'/') && scan_path(path) == Ok((path.len(), true))
}

#[cfg(test)]
mod tests {
    use super::{Form, PathRules, Reading, Target, encode_query, has_other_readings, normalise, split};

    fn norm(path: &str, rules: PathRules) -> Result<(String, String), &'static str> {
        let (mut d, mut e) = (Vec::new(), Vec::new());
        normalise(path.as_bytes(), rules, &mut d, &mut e).map_err(|r| r.reason)?;
        Ok((String::from_utf8_lossy(&d).into(), String::from_utf8(e).unwrap()))
    }

    #[test]
    fn paths_have_one_form() {
        for (path, decoded, encoded) in [
            ("/", "/", "/"),
            ("/a/b", "/a/b", "/a/b"),
            ("//a///b", "/a/b", "/a/b"),
            ("/a/", "/a/", "/a/"),
            ("/a/.", "/a/", "/a/"),
            ("/a/./b", "/a/b", "/a/b"),
            ("/a/..", "/", "/"),
            ("/a/../b", "/b", "/b"),
            ("/public/../admin", "/admin", "/admin"),
            ("/public/%2e%2e/admin", "/admin", "/admin"),
            ("/public/..%2fadmin", "/admin", "/admin"),
            ("/%61dmin", "/admin", "/admin"),
            ("/admin%2fx", "/admin/x", "/admin/x"),
            ("/admin;x", "/admin;x", "/admin;x"),
            ("/a%20b", "/a b", "/a%20b"),
            ("/caf%c3%a9", "/café", "/caf%C3%A9"),
            ("/caf\u{e9}", "/café", "/caf%C3%A9"),
            ("/a%252e", "/a%2e", "/a%252e"),
            ("/a%3Fb", "/a?b", "/a%3Fb"),
            ("/.well-known/x", "/.well-known/x", "/.well-known/x"),
            ("/a/...", "/a/...", "/a/..."),
            ("/a\\b", "/a\\b", "/a%5Cb"),
            ("/%0d%0a", "/\r\n", "/%0D%0A"),
        ] {
            assert_eq!(norm(path, PathRules::default()), Ok((decoded.into(), encoded.into())), "{path}");
        }
    }

    #[test]
    fn doubtful_paths_are_refused() {
        for path in ["/..", "/a/../..", "/%2e%2e", "/a%", "/a%2", "/%zz", "/%00", "/a/..;/b", "/a/.;x/b", "/a/..;"] {
            assert!(norm(path, PathRules::default()).is_err(), "{path}");
        }
    }

    #[test]
    fn rules_change_the_form() {
        let tail = PathRules { delete_tail_slash: true, ..PathRules::default() };
        let servlet = PathRules { servlet: true, ..PathRules::default() };
        let slash = PathRules { keep_encoded_slash: true, ..PathRules::default() };
        for (rules, path, decoded, encoded) in [
            (tail, "/a/", "/a", "/a"),
            (tail, "/", "/", "/"),
            (servlet, "/admin;x/y;z=1", "/admin/y", "/admin/y"),
            (servlet, "/a/..;/admin", "/admin", "/admin"),
            (slash, "/a%2fb/../c", "/c", "/c"),
            (slash, "/a%2Fb", "/a%2Fb", "/a%2Fb"),
            (slash, "/a%2F.b%2F...", "/a%2F.b%2F...", "/a%2F.b%2F..."),
        ] {
            assert_eq!(norm(path, rules), Ok((decoded.into(), encoded.into())), "{path}");
        }
        for path in ["/a/..%2fb", "/a%2f..", "/a%2f%2e%2e%2fb", "/.%2fa", "/a%2f..;x%2fb"] {
            assert!(norm(path, slash).is_err(), "{path}");
        }
    }

    #[test]
    fn a_path_may_have_other_readings() {
        for (path, readings) in [
            ("/admin;x/y;z", ["/admin/y", "/admin;x/y;z", "/admin/y", "/admin/y"]),
            ("/\\admin", ["/\\admin", "/admin", "/admin", "/admin"]),
            ("/a;x\\..\\b", ["/a", "/b", "/b", "/a"]),
            ("/a\\b;c\\d/e", ["/a\\b/e", "/a/b;c/d/e", "/a/b/d/e", "/a/b/e"]),
            ("/%3b%5c", ["/", "/;/", "/", "/"]),
        ] {
            let (decoded, encoded) = norm(path, PathRules::default()).unwrap();
            assert!(has_other_readings(decoded.as_bytes()), "{path}");
            let read = Reading::ALL.map(|reading| {
                let path = String::from_utf8(reading.of(encoded.as_bytes())).unwrap();
                norm(&path, PathRules::default()).unwrap().0
            });
            let expected = readings.map(|path| norm(path, PathRules::default()).unwrap().0);
            assert_eq!(read, expected, "{path}");
        }
        assert!(!has_other_readings(b"/a/b"));
    }

    #[test]
    fn targets_split() {
        let ok = |t: &str| split(t.as_bytes()).unwrap();
        assert_eq!(ok("*").form, Form::Asterisk);
        let t = ok("/a?b=c?d");
        assert_eq!((t.path.unwrap().of(b"/a?b=c?d"), t.query.unwrap().of(b"/a?b=c?d")), (&b"/a"[..], &b"b=c?d"[..]));
        assert!(t.normal && t.query_clean);
        let text = "HTTP://a.test:80?x";
        let t = ok(text);
        assert_eq!((t.form, t.path), (Form::Absolute, None));
        assert_eq!(t.authority.unwrap().of(text.as_bytes()), b"a.test:80");
        for (target, normal) in
            [("/a//b", false), ("/a/.b", false), ("/a;b", false), ("/%41", false), ("/a-b_c~d", true)]
        {
            assert_eq!(ok(target), Target { normal, ..ok(target) }, "{target}");
        }
        for bad in [
            "",
            "a",
            "a.test:80",
            "ftp://a/",
            "http://",
            "http:///x",
            "http://u@a/",
            "/a#b",
            "/a b",
            "/a\u{1}",
            "/\u{7f}",
            "/?a\u{1}",
            "/?#",
        ] {
            assert!(split(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn queries_are_encoded() {
        let mut out = Vec::new();
        encode_query("q=é|{}".as_bytes(), &mut out);
        assert_eq!(out, b"q=%C3%A9|{}");
    }
}
