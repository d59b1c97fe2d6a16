//! The location that a client is sent to: a configured text, with values of the request that cannot change its
//! structure.

use weir_expr::{Piece, Source, Template, Value, Variable};
use weir_wire::authority;
use weir_wire::target::{encode_path, encode_query};

/// A configured place.
#[derive(Debug)]
pub(super) struct Location {
    form: Form,
    /// The text after the `#`.
    fragment: Option<Template>,
    /// True if the text before the first `?` is not encoded yet.
    encode: bool,
}

/// The kind of target, by its beginning.
#[derive(Debug)]
enum Form {
    /// `https://host/path` or `//host/path`.
    Absolute {
        /// With its `:`, unless there is none.
        scheme: Option<Template>,
        /// As far as a `/` or `?` of the configuration ends it. A variable may end it before.
        authority: Template,
        rest: Option<Template>,
    },
    /// A path: the text begins with `/`, or with a variable whose value has to.
    Path(Template),
    /// Anything else, which begins with a text of the configuration: `next?page=$arg_page`.
    Relative(Template),
}

/// The groups that a regular expression matched in the path.
#[derive(Debug, Default)]
pub(super) struct Match<'a> {
    pub(super) groups: &'a [&'a [u8]],
    pub(super) before: &'a [u8],
    pub(super) after: &'a [u8],
}

const SCHEME: &str = "redirect: the scheme is neither http nor https";
const HOST: &str = "redirect: what the request fills in is no host, or changes the configured one";
const NO_PATH: &str = "redirect: what the request fills in is no path";

impl Location {
    /// Reads a configured text; `captures` is whether `$1` means what a group matched.
    pub(super) fn parse(text: &str, captures: bool, encode: bool) -> Result<Self, String> {
        let template = |text: &str| {
            let parsed = if captures { Template::parse_replacement(text) } else { Template::parse_unescaped(text) };
            parsed.map_err(|error| error.to_string())
        };
        let escapes = if captures { 0 } else { text.matches("\\$").count() };
        if text.matches('\\').count() > escapes || text.chars().any(char::is_control) {
            return Err("expected a URI: it holds no backslashes and no control characters".into());
        }
        let (text, fragment) = match text.split_once('#') {
            Some((text, fragment)) if !encode => (text, Some(template(fragment)?)),
            _ => (text, None),
        };
        let form = match absolute(text)? {
            Some(parts) => Form::Absolute {
                scheme: parts.scheme.map(template).transpose()?,
                authority: template(parts.authority)?,
                rest: parts.rest.map(template).transpose()?,
            },
            None if text.starts_with(['/', '$']) => Form::Path(template(text)?),
            None => Form::Relative(template(text)?),
        };
        Ok(Self { form, fragment, encode })
    }

    /// Appends the place to `out`, which is empty; `query` is to be added to it.
    pub(super) fn render(
        &self,
        source: &dyn Source,
        found: &Match<'_>,
        query: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let mut writer = Writer { out, source, encode: self.encode, in_query: false };
        let write = |template: &Template, writer: &mut Writer<'_>| {
            template.pieces(source, found.groups, |piece| writer.push(piece));
        };
        // Text before a match is the beginning of a path, whatever follows.
        let path = !found.before.is_empty() || matches!(self.form, Form::Path(_));
        writer.push(Piece::Capture(found.before));
        match &self.form {
            Form::Path(text) | Form::Relative(text) => {
                write(text, &mut writer);
                writer.push(Piece::Capture(found.after));
            }
            Form::Absolute { scheme, authority, rest } => {
                if let Some(scheme) = scheme {
                    write(scheme, &mut writer);
                    check_scheme(scheme, writer.out)?;
                }
                writer.out.extend_from_slice(b"//");
                let mut host = Host { start: writer.out.len(), ended: false };
                let mut done = Ok(());
                authority.pieces(source, found.groups, |piece| {
                    done = done.and_then(|()| host.push(piece, &mut writer));
                });
                done?;
                if writer.out.len() == host.start {
                    return Err(HOST);
                }
                let after = Piece::Capture(found.after);
                match rest {
                    Some(rest) => {
                        write(rest, &mut writer);
                        writer.push(after);
                    }
                    None => host.push(after, &mut writer)?,
                }
            }
        }
        if let Some(query) = query {
            writer.out.push(if writer.out.contains(&b'?') { b'&' } else { b'?' });
            encode_query(query, writer.out);
        }
        if let Some(fragment) = &self.fragment {
            writer.out.push(b'#');
            writer.in_query = true;
            write(fragment, &mut writer);
        }
        if path { one_slash(out) } else { Ok(()) }
    }
}

/// The parts of a text that names a host.
struct Absolute<'a> {
    scheme: Option<&'a str>,
    authority: &'a str,
    rest: Option<&'a str>,
}

fn absolute(text: &str) -> Result<Option<Absolute<'_>>, String> {
    let (scheme, after) = match text.split_once("//") {
        Some(("", after)) => (None, after),
        Some((scheme, after)) if is_scheme(scheme) => (Some(scheme), after),
        _ => return Ok(None),
    };
    let end = Template::find_outside(after, b"/?").unwrap_or(after.len());
    let (authority, rest) = after.split_at(end);
    if authority.is_empty() || !authority.bytes().all(|b| b.is_ascii_graphic() && b != b'@') {
        return Err("expected a host in ASCII behind the //, without user information".into());
    }
    Ok(Some(Absolute { scheme, authority, rest: Some(rest).filter(|rest| !rest.is_empty()) }))
}

/// `https:` (RFC 3986 section 3.1), or a variable that has to be one.
fn is_scheme(text: &str) -> bool {
    let Some(name) = text.strip_suffix(':') else { return false };
    let named = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_'))
    };
    match name.strip_prefix('$') {
        Some(variable) => {
            let name = variable.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(variable);
            named(name.split("??").next().unwrap_or_default().trim())
        }
        None => named(name),
    }
}

/// A configured scheme is whatever it is; one from a request is one of two.
fn check_scheme(scheme: &Template, rendered: &[u8]) -> Result<(), &'static str> {
    let known = [&b"http:"[..], b"https:"].iter().any(|known| known.eq_ignore_ascii_case(rendered));
    if known || scheme.literal().is_some() { Ok(()) } else { Err(SCHEME) }
}

/// A path is a path for browsers too: for them `//host` is another host, and so is `/\host`, in which the backslash was
/// encoded before.
fn one_slash(out: &mut Vec<u8>) -> Result<(), &'static str> {
    if out.first() != Some(&b'/') {
        return Err(NO_PATH);
    }
    let rest = out.iter().skip(1).position(|b| *b != b'/').unwrap_or(out.len() - 1);
    out.drain(1..1 + rest);
    Ok(())
}

/// Writes pieces in the form in which they may stand in a URI.
struct Writer<'a> {
    out: &'a mut Vec<u8>,
    source: &'a dyn Source,
    encode: bool,
    /// True if a `?` has been written.
    in_query: bool,
}

impl Writer<'_> {
    fn push(&mut self, piece: Piece<'_>) {
        match piece {
            // Decoded text: whatever means something in a URI is encoded again.
            Piece::Capture(text) | Piece::Value(Variable::Uri, text) => encode_path(text, self.out),
            Piece::Value(Variable::RequestUri, text) => {
                let (path, query) = match self.source.variable(&Variable::Uri) {
                    Some(Value::Bytes(path)) if text.starts_with(path) => text.split_at(path.len()),
                    _ => (text, &b""[..]),
                };
                encode_path(path, self.out);
                self.push_text(query);
            }
            Piece::Literal(text) | Piece::Value(_, text) => self.push_text(text),
        }
    }

    /// Text that is in the form of a URI already, unless `encode` says that it is not.
    fn push_text(&mut self, text: &[u8]) {
        for &byte in text {
            self.in_query |= byte == b'?';
            match byte {
                b'%' if self.encode && !self.in_query => self.out.extend_from_slice(b"%25"),
                b'\\' => self.out.extend_from_slice(b"%5C"),
                _ => encode_query(&[byte], self.out),
            }
        }
    }
}

/// An authority as it is written piece by piece. What a request fills in may be all of the host, a label or more before
/// the end, or the port; it may follow the host as a path or query, and may not change where the configured text leads.
struct Host {
    start: usize,
    ended: bool,
}

impl Host {
    fn push(&mut self, piece: Piece<'_>, writer: &mut Writer<'_>) -> Result<(), &'static str> {
        let (Piece::Literal(text) | Piece::Capture(text) | Piece::Value(_, text)) = piece;
        if text.is_empty() {
            return Ok(());
        }
        if self.ended {
            writer.push(piece);
            return Ok(());
        }
        if matches!(piece, Piece::Literal(_)) {
            writer.out.extend_from_slice(text);
            return Ok(());
        }
        let written = writer.out.get(self.start..).unwrap_or_default();
        if matches!(text, [b'/' | b'?', ..]) && !written.is_empty() {
            self.ended = true;
            writer.push(piece);
            return Ok(());
        }
        let fits = match written.last() {
            None => authority::parse(text).is_ok(),
            Some(b':') => text.iter().all(u8::is_ascii_digit),
            Some(b'.' | b'-') => {
                text.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
                    || authority::parse(text).is_ok()
            }
            Some(_) => false,
        };
        if !fits {
            return Err(HOST);
        }
        writer.out.extend_from_slice(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{HOST, Location, Match, NO_PATH, SCHEME};
    use weir_expr::{Source, Value, Variable};

    /// `$uri` is `/p q%`, `$host` is `a.test`, `$scheme` is `https`; `$arg_x` is as given.
    struct Request<'a>(&'a str);
    impl Source for Request<'_> {
        fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
            let text = match variable {
                Variable::Uri => "/p q%",
                Variable::Host => "a.test",
                Variable::HttpHost => "a.test:80",
                Variable::Scheme => "https",
                Variable::RequestUri => "/p q%?a=1",
                Variable::Arg(_) => self.0,
                _ => return None,
            };
            Some(Value::Bytes(text.as_bytes()))
        }
    }

    fn render(text: &str, arg: &str, encode: bool, query: Option<&str>) -> Result<String, &'static str> {
        let mut out = Vec::new();
        let location = Location::parse(text, false, encode).unwrap();
        let done = location.render(&Request(arg), &Match::default(), query.map(str::as_bytes), &mut out);
        done.map(|()| String::from_utf8(out).unwrap())
    }

    #[test]
    fn places_are_made() {
        for (text, arg, query, place) in [
            ("/new", "", None, "/new"),
            ("/new", "", Some("a=1"), "/new?a=1"),
            ("/new?b=2", "", Some("a=1"), "/new?b=2&a=1"),
            ("/new#top", "", Some("a=1"), "/new?a=1#top"),
            ("$uri/x", "", None, "/p%20q%25/x"),
            ("${uri}x", "", None, "/p%20q%25x"),
            ("$request_uri", "", None, "/p%20q%25?a=1"),
            ("$request_uri", "", Some("b"), "/p%20q%25?a=1&b"),
            ("/x?from=$uri", "", None, "/x?from=/p%20q%25"),
            ("/caf\u{e9}", "", None, "/caf%C3%A9"),
            ("/x/$arg_x", "a%20b", None, "/x/a%20b"),
            ("/x/$arg_x", "a#b\r\nc", None, "/x/a%23b%0D%0Ac"),
            ("https://b.test/x", "", None, "https://b.test/x"),
            ("https://b.test", "", Some("a"), "https://b.test?a"),
            ("https://$host$request_uri", "", None, "https://a.test/p%20q%25?a=1"),
            ("https://www.$host$uri", "", None, "https://www.a.test/p%20q%25"),
            ("https://$host:8443$request_uri", "", None, "https://a.test:8443/p%20q%25?a=1"),
            ("$scheme://$http_host/x", "", None, "https://a.test:80/x"),
            ("${scheme}://b.test$uri", "", None, "https://b.test/p%20q%25"),
            ("https://$arg_x.b.test/x", "a", None, "https://a.b.test/x"),
            ("https://b.test:$arg_x/", "8443", None, "https://b.test:8443/"),
            ("//b.test$uri", "", None, "//b.test/p%20q%25"),
            ("https://b.test?x=$arg_x", "//c.test", None, "https://b.test?x=//c.test"),
            ("next?page=$arg_x", "2", None, "next?page=2"),
            ("/login?to=https://b.test/", "", None, "/login?to=https://b.test/"),
            ("app://open/$arg_x", "1", None, "app://open/1"),
            ("/x/\\$arg_x/$arg_x/\\${uri}", "1", None, "/x/$arg_x/1/${uri}"),
            ("\\$next", "", None, "$next"),
        ] {
            assert_eq!(render(text, arg, false, query).as_deref(), Ok(place), "{text} {arg}");
        }
    }

    #[test]
    fn text_is_encoded_up_to_the_query() {
        for (text, arg, place) in [
            ("/a b#c", "", "/a%20b%23c"),
            ("/100%", "", "/100%25"),
            ("/a?b=%20#c", "", "/a?b=%20%23c"),
            ("/x/$arg_x", "a%20b?c%20d", "/x/a%2520b?c%20d"),
            ("$uri", "", "/p%20q%25"),
        ] {
            assert_eq!(render(text, arg, true, None).as_deref(), Ok(place), "{text} {arg}");
        }
    }

    #[test]
    fn a_request_leads_nowhere_else() {
        for (text, arg, place) in [
            ("/$arg_x", "/evil.test", Ok("/evil.test")),
            ("/$arg_x", "//evil.test", Ok("/evil.test")),
            ("/$arg_x", "\\evil.test", Ok("/%5Cevil.test")),
            ("/$arg_x", "\t/evil.test", Ok("/%09/evil.test")),
            ("$arg_x", "/ok", Ok("/ok")),
            ("$arg_x", "//evil.test", Ok("/evil.test")),
            ("$arg_x", "/\\evil.test", Ok("/%5Cevil.test")),
            ("$arg_x", "https://evil.test", Err(NO_PATH)),
            ("$arg_x", "javascript:alert(1)", Err(NO_PATH)),
            ("$arg_x", "evil", Err(NO_PATH)),
            ("$arg_x", "", Err(NO_PATH)),
            ("https://b.test$arg_x", ".evil.test", Err(HOST)),
            ("https://b.test$arg_x", "@evil.test", Err(HOST)),
            ("https://b.test$arg_x", ":80@evil.test", Err(HOST)),
            ("https://b.test$arg_x", "evil", Err(HOST)),
            ("https://b.test$arg_x", "", Ok("https://b.test")),
            ("https://b.test$arg_x", "/@evil.test", Ok("https://b.test/@evil.test")),
            ("https://b.test$arg_x", "\\.evil.test", Err(HOST)),
            ("https://b.test:$arg_x/", "80@evil.test", Err(HOST)),
            ("https://$arg_x.b.test/", "evil.test/", Err(HOST)),
            ("https://$arg_x.b.test/", "/evil.test", Err(HOST)),
            ("https://$arg_x.b.test/", "evil.test?", Err(HOST)),
            ("https://$arg_x.b.test/", "evil.test#", Err(HOST)),
            ("https://$arg_x/x", "", Err(HOST)),
            ("https://$host$arg_x/", ".evil.test", Err(HOST)),
            ("$arg_x://b.test/", "javascript", Err(SCHEME)),
            ("$arg_x://b.test/", "", Err(SCHEME)),
        ] {
            assert_eq!(render(text, arg, false, None).as_deref(), place.as_deref(), "{text} {arg}");
        }
    }

    #[test]
    fn whatever_a_request_fills_in_the_host_stays() {
        const PARTS: [&str; 18] = [
            "/",
            "\\",
            "@",
            ":",
            ".",
            "?",
            "#",
            "%",
            "\t",
            "\r\n",
            " ",
            "evil.test",
            "80",
            "//",
            "%2f",
            "[",
            "-",
            "\0",
        ];
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let filled: String = (0..random.usize(..6)).map(|_| PARTS[random.usize(..PARTS.len())]).collect();
            for (text, host) in [
                ("/$arg_x", None),
                ("$arg_x", None),
                ("$arg_x/x", None),
                ("https://b.test$arg_x", Some("https://b.test")),
                ("https://b.test/$arg_x", Some("https://b.test")),
                ("https://b.test$arg_x$arg_x?a=$arg_x", Some("https://b.test")),
                ("//b.test$arg_x/y", Some("//b.test")),
            ] {
                let Ok(place) = render(text, &filled, random.bool(), None) else { continue };
                assert!(place.bytes().all(|b| b.is_ascii_graphic() && b != b'\\'), "{filled:?} {place:?}");
                let path = match host {
                    Some(host) => place.strip_prefix(host).unwrap_or_else(|| panic!("{text} {filled:?} {place:?}")),
                    None => place.strip_prefix('/').filter(|rest| !rest.starts_with('/')).map_or("", |_| &place),
                };
                let whole = host.is_some() && path.is_empty();
                assert!(whole || path.starts_with(['/', '?']), "{text} {filled:?} {place:?}");
            }
        }
    }

    #[test]
    fn matches_are_replaced() {
        for (text, groups, before, after, place) in [
            ("/new/$1", vec!["", "a b/c"], "", "", Ok("/new/a%20b/c")),
            ("/$2-$1", vec!["", "a", "b"], "", "/rest", Ok("/b-a/rest")),
            ("new", vec!["old"], "/x/", "/y", Ok("/x/new/y")),
            ("/new", vec!["old"], "/", "", Ok("/new")),
            ("https://b.test/", vec!["old"], "/", "", Ok("/https://b.test/")),
            ("https://b.test/$1", vec!["", "//c?d#e"], "", "", Ok("https://b.test///c%3Fd%23e")),
            ("https://b.test", vec![""], "", "/rest", Ok("https://b.test/rest")),
            ("https://b.test", vec![""], "", ".evil.test", Err(HOST)),
            ("https://b.test$1", vec!["", ".evil.test"], "", "", Err(HOST)),
            ("https://$1.b.test/x", vec!["", "a"], "", "", Ok("https://a.b.test/x")),
            ("$1", vec!["", "evil"], "", "", Err(NO_PATH)),
            ("$1", vec!["", "/\r\nSet-Cookie: x"], "", "", Ok("/%0D%0ASet-Cookie:%20x")),
        ] {
            let groups: Vec<&[u8]> = groups.iter().map(|group: &&str| group.as_bytes()).collect();
            let found = Match { groups: &groups, before: before.as_bytes(), after: after.as_bytes() };
            let mut out = Vec::new();
            let location = Location::parse(text, true, false).unwrap();
            let done = location.render(&Request(""), &found, None, &mut out);
            let place_made = done.map(|()| String::from_utf8(out).unwrap());
            assert_eq!(place_made.as_deref(), place.as_deref(), "{text} {before} {after}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for (text, reason) in [
            ("/a\\b", "no backslashes"),
            ("/\\$a\\b", "no backslashes"),
            ("/a\r\nb", "no control characters"),
            ("https://", "expected a host"),
            ("https:///x", "expected a host"),
            ("https://user@b.test/", "expected a host"),
            ("/$ssl_protocol", "variable 'ssl_protocol' is not supported yet"),
        ] {
            let error = Location::parse(text, false, false).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
