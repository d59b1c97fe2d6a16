//! A configured path, with what a request fills into it.

use weir_expr::{Piece, Source, Template, Variable};
use weir_wire::query;
use weir_wire::target::{encode_path, encode_query};

/// `uri`, or the second half of a pair of `regex_uri`.
#[derive(Debug)]
pub(super) struct Replacement {
    path: Template,
    /// The text after the `?` in the configured text; a `?` that a request brings in never separates.
    query: Option<Template>,
}

/// A rewritten path is refused when it holds `.` or `..` as a segment.
pub(super) const DOT_SEGMENT: &str = "proxy-rewrite: dot segment in the rewritten path";

impl Replacement {
    pub(super) fn parse(text: &str, captures: bool) -> Result<Self, String> {
        let template = |text: &str| {
            let parsed =
                if captures { Template::parse_replacement(text) } else { Template::parse_lenient(text, false) };
            parsed.map_err(|error| error.to_string())
        };
        let (path, query) = match Template::find_outside(text, b"?") {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        Ok(Self { path: template(path)?, query: query.map(template).transpose()? })
    }

    /// Appends the target: `around` is what stood before and after the match in the decoded path, `args` the client's
    /// query.
    pub(super) fn write(
        &self,
        source: &dyn Source,
        captures: &[&[u8]],
        around: [&[u8]; 2],
        args: Option<&[u8]>,
        room: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let [before, after] = around;
        room.clear();
        room.extend_from_slice(before);
        self.path.render_with_captures(source, captures, room);
        if self.query.is_none() {
            room.extend_from_slice(after);
        }
        if has_dot_segment(room) {
            return Err(DOT_SEGMENT);
        }
        if room.first() != Some(&b'/') {
            out.push(b'/');
        }
        encode_path(room, out);
        if let Some(query) = &self.query {
            room.clear();
            render_query(query, source, captures, room);
            room.extend_from_slice(after);
            out.push(b'?');
            encode_query(room, out);
        }
        if let Some(args) = args.filter(|args| !args.is_empty()) {
            out.push(if self.query.is_some() { b'&' } else { b'?' });
            encode_query(args, out);
        }
        Ok(())
    }

    /// Appends the target as it comes, from a match in the received target; only what no target may hold is escaped.
    /// `args` is the client's query, unless it was part of what the match stood in.
    pub(super) fn write_raw(
        &self,
        source: &dyn Source,
        captures: &[&[u8]],
        around: [&[u8]; 2],
        args: Option<&[u8]>,
        room: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) {
        let [before, after] = around;
        room.clear();
        room.extend_from_slice(before);
        self.path.render_with_captures(source, captures, room);
        if let Some(query) = &self.query {
            room.push(b'?');
            render_query(query, source, captures, room);
        }
        room.extend_from_slice(after);
        if let Some(args) = args.filter(|args| !args.is_empty()) {
            room.push(if self.query.is_some() { b'&' } else { b'?' });
            room.extend_from_slice(args);
        }
        if room.first() != Some(&b'/') {
            out.push(b'/');
        }
        encode_query(room, out);
    }
}

/// Appends what follows the `?`. An argument of the request stays one value, whatever is in it.
fn render_query(query: &Template, source: &dyn Source, captures: &[&[u8]], room: &mut Vec<u8>) {
    query.pieces(source, captures, |piece| match piece {
        Piece::Value(Variable::Arg(_), text) => query::encode(text, room),
        Piece::Literal(text) | Piece::Capture(text) | Piece::Value(_, text) => room.extend_from_slice(text),
    });
}

/// True if a segment is `.` or `..`, with or without `;parameters`, which some servers cut off first.
fn has_dot_segment(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').any(|segment| {
        let name = segment.split(|b| *b == b';').next().unwrap_or_default();
        matches!(name, b"." | b"..")
    })
}

#[cfg(test)]
mod tests {
    use super::{DOT_SEGMENT, Replacement};
    use weir_expr::{Source, Value, Variable};

    struct Arg(&'static str);
    impl Source for Arg {
        fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
            matches!(variable, Variable::Arg(_)).then(|| Value::Bytes(self.0.as_bytes()))
        }
    }

    #[test]
    fn targets_are_made() {
        for (text, captures, around, args, arg, target) in [
            ("/new", vec![], ["", ""], None, "", Ok("/new")),
            ("/new", vec![], ["", ""], Some("a=1"), "", Ok("/new?a=1")),
            ("/new?b=2", vec![], ["", ""], Some("a=1"), "", Ok("/new?b=2&a=1")),
            ("/new?b=2", vec![], ["", ""], Some(""), "", Ok("/new?b=2")),
            ("/x/$arg_a", vec![], ["", ""], None, "p", Ok("/x/p")),
            ("/x/$arg_a", vec![], ["", ""], None, "p?q#r s", Ok("/x/p%3Fq%23r%20s")),
            ("/x/$arg_a", vec![], ["", ""], None, "%2e%2e", Ok("/x/%252e%252e")),
            ("/x/$arg_a", vec![], ["", ""], None, "../y", Err(DOT_SEGMENT)),
            ("/x/$arg_a", vec![], ["", ""], None, "..;v=1/y", Err(DOT_SEGMENT)),
            ("/x.$arg_a", vec![], ["", ""], None, ".", Ok("/x..")),
            ("/y?id=$arg_a", vec![], ["", ""], Some("a=1"), "p q", Ok("/y?id=p%20q&a=1")),
            ("/y?id=$arg_a", vec![], ["", ""], None, "p&q=1+%\u{e9}", Ok("/y?id=p%26q%3D1%2B%25%C3%A9")),
            ("$1", vec!["all", "part"], ["", ""], None, "", Ok("/part")),
            ("/$2/$1", vec!["", "a", "b"], ["/pre", "/post"], None, "", Ok("/pre/b/a/post")),
            ("/y?id=$1", vec!["", "7"], ["", "/rest"], None, "", Ok("/y?id=7/rest")),
            ("/caf\u{e9}", vec![], ["", ""], None, "", Ok("/caf%C3%A9")),
        ] {
            let replacement = Replacement::parse(text, true).unwrap();
            let captures: Vec<&[u8]> = captures.iter().map(|c: &&str| c.as_bytes()).collect();
            let (mut room, mut out) = (Vec::new(), Vec::new());
            let args = args.map(str::as_bytes);
            let done = replacement.write(&Arg(arg), &captures, around.map(str::as_bytes), args, &mut room, &mut out);
            let got = done.map(|()| String::from_utf8(out).unwrap());
            assert_eq!(got.as_deref(), target.as_ref().map(|t| &**t), "{text} {arg}");
        }
    }

    #[test]
    fn raw_targets_stay_as_they_are() {
        for (text, captures, around, args, target) in [
            ("/$1", vec!["", "a%2Fb//c/../d?x=%20"], ["", ""], None, "/a%2Fb//c/../d?x=%20"),
            ("/$1", vec!["", "a b\u{7f}"], ["", ""], None, "/a%20b%7F"),
            ("$1", vec!["", "a"], ["", "?q"], None, "/a?q"),
            ("/fixed?a=b", vec![""], ["", ""], None, "/fixed?a=b"),
            ("/fixed?a=b", vec![""], ["", ""], Some("c=%20"), "/fixed?a=b&c=%20"),
            ("/fixed", vec![""], ["", ""], Some("c"), "/fixed?c"),
            ("/fixed", vec![""], ["", ""], Some(""), "/fixed"),
        ] {
            let replacement = Replacement::parse(text, true).unwrap();
            let captures: Vec<&[u8]> = captures.iter().map(|c: &&str| c.as_bytes()).collect();
            let (mut room, mut out) = (Vec::new(), Vec::new());
            let args = args.map(str::as_bytes);
            replacement.write_raw(&Arg(""), &captures, around.map(str::as_bytes), args, &mut room, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), target, "{text}");
        }
    }
}
