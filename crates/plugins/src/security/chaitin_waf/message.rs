//! Messages of T1K: parts with a tag of one byte and a length of four, of which the first and the last are marked.

use weir_expr::Variable;
use weir_plugin::RequestCx;
use weir_wire::name::FieldName;

use super::conf::Settings;
use crate::{hex, received};

/// Tags of parts.
const HEAD: u8 = 0x01;
const BODY: u8 = 0x02;
const EXTRA: u8 = 0x03;
const VERSION: u8 = 0x20;
const EXTRA_FIELDS: u8 = 0x23;
const EXTRA_BODY: u8 = 0x24;
/// Marks of the first and the last part.
const FIRST: u8 = 0x40;
const LAST: u8 = 0x80;

/// Bytes of the head of a part.
pub(super) const PART_HEAD: usize = 5;
/// Most bytes of an answer.
pub(super) const MOST: usize = 256 << 10;

/// The word of the firewall about a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The status with which the request is to be answered; `None`: it may pass.
    pub(super) rejects: Option<u16>,
    /// The name by which the firewall's log has the event; empty where it has none.
    pub(super) event_id: String,
    /// Fields for the response.
    pub(super) fields: Vec<(FieldName, Vec<u8>)>,
}

/// The question about a request.
pub(super) fn question(cx: &RequestCx<'_>, settings: &Settings) -> Vec<u8> {
    let mut out = Vec::with_capacity(2048);
    push_part(&mut out, HEAD | FIRST, |out| received::write_head(cx.request(), out));
    if let Some(body) = cx.body().filter(|body| !body.is_empty()) {
        push_part(&mut out, BODY, |out| out.extend_from_slice(body.get(..settings.body).unwrap_or(body)));
    }
    push_part(&mut out, EXTRA, |out| push_extra(cx, settings, out));
    push_part(&mut out, VERSION | LAST, |out| out.extend_from_slice(b"Proto:3\n"));
    out
}

/// Facts about the connection, a line each behind a byte that tells which one it is.
fn push_extra(cx: &RequestCx<'_>, settings: &Settings, out: &mut Vec<u8>) {
    let client = cx.client();
    let address = match settings.real_client_ip {
        true => client.addr_text.as_bytes().to_vec(),
        false => client.peer.to_string().into_bytes(),
    };
    let text = |variable: &Variable| {
        let mut text = Vec::new();
        if let Some(value) = cx.variable(variable) {
            value.write_to(&mut text);
        }
        text
    };
    let began_us = cx.unix_ms().saturating_mul(1000).to_string();
    let uuid = hex::encode(&rand::random::<[u8; 16]>());
    for (key, value) in [
        (0x01, &b""[..]),
        (0x11, client.port.to_string().as_bytes()),
        (0x12, client.local.port().to_string().as_bytes()),
        (0x13, &address),
        (0x14, client.local.ip().to_string().as_bytes()),
        (0x15, &text(&Variable::ServerName)),
        (0x16, if client.https { b"https" } else { b"http" }),
        (0x17, &text(&Variable::Hostname)),
        (0x18, uuid.as_bytes()),
        // Nothing is told of responses, neither of those to requests that pass nor of those to rejected ones.
        (0x19, b"n"),
        (0x1a, b"n"),
        (0x1b, began_us.as_bytes()),
    ] {
        out.push(key);
        out.extend(value.iter().copied().filter(|byte| *byte != b'\n'));
        out.push(b'\n');
    }
}

fn push_part(out: &mut Vec<u8>, tag: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&[tag, 0, 0, 0, 0]);
    write(out);
    let length = (out.len() - begin - PART_HEAD) as u32;
    out.splice(begin + 1..begin + PART_HEAD, length.to_le_bytes());
}

/// An answer that comes part by part.
#[derive(Debug, Default)]
pub(super) struct Answer {
    parts: Vec<(u8, Vec<u8>)>,
    length: usize,
}

/// The head of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartHead {
    tag: u8,
    pub(super) length: usize,
    pub(super) is_last: bool,
}

impl Answer {
    /// Reads the head of the next part.
    pub(super) fn head(&mut self, head: [u8; PART_HEAD]) -> Result<PartHead, &'static str> {
        let [mark, length @ ..] = head;
        if self.parts.is_empty() && mark & FIRST == 0 {
            return Err("an answer that is none of T1K");
        }
        let length = u32::from_le_bytes(length) as usize;
        self.length = self.length.saturating_add(length).saturating_add(PART_HEAD);
        if self.length > MOST {
            return Err("an answer that is too long");
        }
        Ok(PartHead { tag: mark & !(FIRST | LAST), length, is_last: mark & LAST != 0 })
    }

    /// Adds the content of a part.
    pub(super) fn add(&mut self, head: PartHead, content: Vec<u8>) {
        self.parts.push((head.tag, content));
    }

    /// The verdict of a whole answer.
    pub(super) fn verdict(&self) -> Result<Verdict, &'static str> {
        let part = |tag: u8| self.parts.iter().rev().find(|(known, _)| *known == tag).map(|(_, content)| &**content);
        let rejects = match part(HEAD) {
            Some(b".") => None,
            Some(b"?") => Some(part(BODY).and_then(status).unwrap_or(403)),
            _ => return Err("an answer without an action that is known"),
        };
        Ok(Verdict {
            rejects,
            event_id: part(EXTRA_BODY).and_then(event_id).unwrap_or_default(),
            fields: part(EXTRA_FIELDS).map(fields).unwrap_or_default(),
        })
    }
}

fn status(text: &[u8]) -> Option<u16> {
    std::str::from_utf8(text).ok()?.trim().parse().ok().filter(|status| (200..=599).contains(status))
}

/// The name in `<!-- event_id: NAME -->` or `<!-- event_id: NAME TYPE: A -->`.
fn event_id(page: &[u8]) -> Option<String> {
    let (_, rest) = std::str::from_utf8(page).ok()?.split_once("<!-- event_id: ")?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric())?;
    let (name, rest) = rest.split_at_checked(end).filter(|(name, _)| !name.is_empty())?;
    (rest.starts_with(" -->") || rest.starts_with(" TYPE: ")).then(|| name.to_owned())
}

/// Lines with a name, a colon and a value. What no message may have is left out.
fn fields(lines: &[u8]) -> Vec<(FieldName, Vec<u8>)> {
    let field = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b':')?;
        let name = std::str::from_utf8(line.get(..at)?).ok().and_then(FieldName::new)?;
        let value = weir_wire::trim_ows(line.get(at + 1..)?);
        let is_sent = !name.is_framing() && value.iter().all(|byte| weir_wire::is_field_byte(*byte));
        is_sent.then(|| (name, value.to_vec()))
    };
    lines.split(|byte| *byte == b'\n').filter_map(field).collect()
}

#[cfg(test)]
mod tests {
    use super::{Answer, MOST, Verdict, push_part};

    /// Reads an answer of these parts.
    fn read(parts: &[(u8, &[u8])]) -> Result<Verdict, &'static str> {
        let mut answer = Answer::default();
        for (at, (tag, content)) in parts.iter().enumerate() {
            let marks = if at == 0 { 0x40 } else { 0 } | if at + 1 == parts.len() { 0x80 } else { 0 };
            let mut part = Vec::new();
            push_part(&mut part, tag | marks, |out| out.extend_from_slice(content));
            let (head, content) = part.split_first_chunk().unwrap();
            let head = answer.head(*head)?;
            assert_eq!((head.length, head.is_last), (content.len(), at + 1 == parts.len()));
            answer.add(head, content.to_vec());
        }
        answer.verdict()
    }

    #[test]
    fn answers_are_read() {
        assert_eq!(read(&[(1, b".")]), Ok(Verdict::default()));
        let event = "<!-- event_id: c0c039a7c348486eaffd9e2f9846b66b TYPE: A -->";
        let parts: [(u8, &[u8]); 4] = [
            (1, b"?"),
            (2, b"405"),
            (0x24, event.as_bytes()),
            (0x23, b"Set-Cookie:a=b\nX-A: c\nContent-Length:1\nbad\n"),
        ];
        let verdict = read(&parts).unwrap();
        assert_eq!((verdict.rejects, verdict.event_id.as_str()), (Some(405), "c0c039a7c348486eaffd9e2f9846b66b"));
        let fields: Vec<_> = verdict.fields.iter().map(|(name, value)| (name.text(), &**value)).collect();
        assert_eq!(fields, [(&b"Set-Cookie"[..], &b"a=b"[..]), (b"X-A", b"c")]);
        // Without a status, or with one that is none, a rejection is still one.
        for status in [&b""[..], b"999999", b"ok", b"0"] {
            assert_eq!(read(&[(1, b"?"), (2, status)]).unwrap().rejects, Some(403));
        }
        for (page, name) in
            [("<!-- event_id: a -->", "a"), ("<!-- event_id: a", ""), ("<!-- event_id: \" -->", ""), ("", "")]
        {
            assert_eq!(read(&[(1, b"?"), (0x24, page.as_bytes())]).unwrap().event_id, name, "{page}");
        }
        for action in [&b""[..], b"!", b".?"] {
            assert!(read(&[(1, action)]).is_err());
        }
        assert!(read(&[(2, b"200")]).is_err());
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        assert!(Answer::default().head(*b"220 a").is_err_and(|reason| reason.contains("none of T1K")));
        let [a, b, c, d] = (MOST as u32).to_le_bytes();
        assert!(Answer::default().head([0x41, a, b, c, d]).is_err_and(|reason| reason.contains("too long")));
    }
}
