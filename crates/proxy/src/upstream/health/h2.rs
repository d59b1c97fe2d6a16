//! Checks over HTTP/2, each on a connection of its own: a request, or the call of `grpc.health.v1.Health/Check`.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use weir_config::ActiveChecks;
use weir_wire::http2::frame::{self, ACK, END_HEADERS, END_STREAM, Header, HeaderBlock, Kind, Setting};
use weir_wire::http2::hpack::{DEFAULT_TABLE_SIZE, Decoder, Encoder, Outcome};
use weir_wire::http2::{DEFAULT_FRAME_SIZE, ErrorCode, PREFACE};

use super::probe::{AGENT, Finding, MAX_INTERIM};
use crate::http2::{is_of_connection, is_sound};

/// Most bytes of an answer: its fields, and its message.
const MOST: usize = 64 << 10;
/// Most frames of an answer.
const MOST_FRAMES: usize = 1024;
/// The stream of the check.
const STREAM: u32 = 1;
/// Statuses that the answer to a call counts as.
const SERVING: u16 = 200;
const NOT_SERVING: u16 = 503;

/// A check: what is sent, all at once.
#[derive(Debug)]
pub(super) struct Request {
    bytes: Vec<u8>,
    is_call: bool,
}

/// An answer so far.
#[derive(Default)]
struct Answer {
    /// Header block that has begun.
    block: Vec<u8>,
    interim: usize,
    status: Option<u16>,
    is_grpc_ok: bool,
    message: Vec<u8>,
    has_ended: bool,
}

impl Request {
    /// A request as the checks describe it. Its body is within the window that every connection begins with, by a rule of
    /// the configuration.
    pub(super) fn new(checks: &ActiveChecks, host: &str, has_tls: bool) -> Self {
        let fields: Vec<(String, &str)> = checks
            .req_headers
            .iter()
            .filter_map(|header| header.split_once(':'))
            .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim()))
            .collect();
        let given = |wanted: &str| fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| *value);
        let body = checks.http_req_body.as_bytes();
        let target =
            Target { method: &checks.http_method, host: given("host").unwrap_or(host), path: &checks.http_path };
        let bytes = message(&target, has_tls, body, |encoder, out| {
            if given("user-agent").is_none() {
                encoder.push(out, b"user-agent", AGENT.as_bytes());
            }
            for (name, value) in &fields {
                let is_own = matches!(name.as_str(), "host" | "content-length" | "te");
                if !is_own && !is_of_connection(name.as_bytes()) {
                    encoder.push(out, name.as_bytes(), value.as_bytes());
                }
            }
            if !body.is_empty() {
                encoder.push(out, b"content-length", body.len().to_string().as_bytes());
            }
        });
        Self { bytes, is_call: false }
    }

    /// A gRPC call that requests the health of the whole server.
    pub(super) fn call(host: &str, has_tls: bool) -> Self {
        let target = Target { method: "POST", host, path: "/grpc.health.v1.Health/Check" };
        // A message without fields: no compression, and a length of 0.
        let bytes = message(&target, has_tls, &[0; 5], |encoder, out| {
            encoder.push(out, b"content-type", b"application/grpc");
            encoder.push(out, b"te", b"trailers");
            encoder.push(out, b"user-agent", AGENT.as_bytes());
        });
        Self { bytes, is_call: true }
    }

    /// Makes the request. An `Err` is a broken connection.
    pub(super) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        status: &mut Option<u16>,
    ) -> io::Result<Finding> {
        stream.write_all(&self.bytes).await?;
        stream.flush().await?;
        let (mut answer, mut decoder) = (Answer::default(), Decoder::new(DEFAULT_TABLE_SIZE));
        for _ in 0..MOST_FRAMES {
            let mut head = [0; Header::LEN];
            stream.read_exact(&mut head).await?;
            let Some(header) = Header::read(&head) else { break };
            if let Err(error) = header.check(DEFAULT_FRAME_SIZE) {
                return Ok(Finding::NotHttp(error.reason));
            }
            let mut payload = vec![0; header.length as usize];
            stream.read_exact(&mut payload).await?;
            let mut reply = Vec::new();
            if let Err(reason) = answer.take(header, &payload, &mut decoder, &mut reply) {
                return Ok(Finding::NotHttp(reason));
            }
            let found = if self.is_call { answer.health() } else { answer.status };
            if let Some(found) = found {
                *status = Some(found);
                // The content does not matter. A node that has gone already has answered all the same.
                frame::push_go_away(&mut reply, 0, ErrorCode::NoError, b"");
                let _ = stream.write_all(&reply).await;
                let _ = stream.flush().await;
                return Ok(Finding::Status(found));
            }
            if answer.has_ended {
                break;
            }
            stream.write_all(&reply).await?;
            stream.flush().await?;
        }
        Ok(Finding::NotHttp("no answer within the frames that one may have"))
    }
}

/// Pseudo-fields of a request.
struct Target<'a> {
    method: &'a str,
    host: &'a str,
    path: &'a str,
}

/// A connection's beginning with one request on it.
fn message(
    target: &Target<'_>,
    has_tls: bool,
    body: &[u8],
    push_fields: impl FnOnce(&mut Encoder, &mut Vec<u8>),
) -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    frame::push_settings(&mut bytes, &[Setting::EnablePush(false)]);
    let block = HeaderBlock::begin(&mut bytes, STREAM);
    let mut encoder = Encoder::new();
    encoder.begin(&mut bytes);
    encoder.push_method(&mut bytes, target.method.as_bytes());
    encoder.push_scheme(&mut bytes, if has_tls { b"https" } else { b"http" });
    encoder.push_authority(&mut bytes, target.host.as_bytes());
    encoder.push_path(&mut bytes, target.path.as_bytes());
    push_fields(&mut encoder, &mut bytes);
    block.finish(&mut bytes, DEFAULT_FRAME_SIZE, body.is_empty());
    let mut pieces = body.chunks(DEFAULT_FRAME_SIZE as usize).peekable();
    while let Some(piece) = pieces.next() {
        frame::push_data_header(&mut bytes, STREAM, piece.len() as u32, pieces.peek().is_none());
        bytes.extend_from_slice(piece);
    }
    bytes
}

impl Answer {
    fn take(
        &mut self,
        header: Header,
        payload: &[u8],
        decoder: &mut Decoder,
        reply: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        match header.kind {
            Kind::Settings if !header.has(ACK) => frame::push_settings_ack(reply),
            Kind::Ping if !header.has(ACK) => frame::push_ping(reply, true, frame::ping(payload)),
            Kind::GoAway if frame::go_away(payload).last_stream < STREAM => return Err("refused by GOAWAY"),
            Kind::ResetStream if header.stream == STREAM => return Err("stream reset"),
            Kind::Data | Kind::Headers | Kind::Continuation if header.stream != STREAM => {
                return Err("frame of a stream that nobody has opened");
            }
            Kind::Data | Kind::Headers | Kind::Continuation => {
                let content = frame::payload(header, payload).map_err(|error| error.reason)?;
                let to = if header.kind == Kind::Data { &mut self.message } else { &mut self.block };
                if to.len() + content.len() > MOST {
                    return Err("answer too large");
                }
                to.extend_from_slice(content);
                self.has_ended |= header.kind != Kind::Continuation && header.has(END_STREAM);
                if header.kind != Kind::Data && header.has(END_HEADERS) {
                    self.take_fields(decoder)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes a header section: of an interim response, of the response, or its trailers.
    fn take_fields(&mut self, decoder: &mut Decoder) -> Result<(), &'static str> {
        let block = std::mem::take(&mut self.block);
        let is_head = self.status.is_none();
        let (mut status, mut is_good, mut is_grpc_ok) = (None, true, false);
        let decoded = decoder.decode(&block, MOST, &mut Vec::new(), |field| match (field.name, field.value) {
            (b":status", value) if is_head && status.is_none() => status = Some(code(value)),
            (name, value) => {
                is_grpc_ok |= name == b"grpc-status" && value == b"0";
                is_good &= is_sound(name, value);
            }
        });
        if decoded.map_err(|error| error.reason)? != Outcome::Complete {
            return Err("answer too large");
        }
        self.is_grpc_ok |= is_grpc_ok;
        match status {
            _ if !is_good => Err("malformed field of a response"),
            None if is_head => Err("response without a status"),
            None => Ok(()),
            Some(None) => Err("pseudo-field that is not the status of a response"),
            Some(Some(code)) if (100..200).contains(&code) => {
                self.interim += 1;
                if self.interim > MAX_INTERIM { Err("too many interim responses") } else { Ok(()) }
            }
            Some(code) => {
                self.status = code;
                Ok(())
            }
        }
    }

    /// HTTP status that the answer to a call counts as, once the answer is complete.
    fn health(&self) -> Option<u16> {
        // Behind the flags and the length of the message its one field, `status`, is SERVING.
        let serves = self.message.get(5..) == Some(&[8, 1]);
        let is_complete = self.has_ended && self.block.is_empty();
        let is_well = self.status == Some(200) && self.is_grpc_ok && serves;
        is_complete.then_some(if is_well { SERVING } else { NOT_SERVING })
    }
}

/// A status of three digits.
fn code(value: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.len() == 3)?;
    text.parse().ok().filter(|code| (100..1000).contains(code))
}

#[cfg(test)]
mod tests {
    use weir_wire::http2::DEFAULT_FRAME_SIZE;
    use weir_wire::http2::frame::HeaderBlock;
    use weir_wire::http2::hpack::Encoder;

    use super::*;

    fn head(out: &mut Vec<u8>, fields: &[(&str, &str)], ends: bool) {
        let block = HeaderBlock::begin(out, STREAM);
        let mut encoder = Encoder::new();
        encoder.begin(out);
        fields.iter().for_each(|(name, value)| encoder.push(out, name.as_bytes(), value.as_bytes()));
        block.finish(out, DEFAULT_FRAME_SIZE, ends);
    }

    /// Verdict on these frames as an answer.
    fn answered(mut frames: &[u8]) -> Result<Answer, &'static str> {
        let (mut answer, mut decoder) = (Answer::default(), Decoder::new(DEFAULT_TABLE_SIZE));
        while let Some(header) = Header::read(frames) {
            let (frame, rest) = frames.split_at(Header::LEN + header.length as usize);
            answer.take(header, &frame[Header::LEN..], &mut decoder, &mut Vec::new())?;
            frames = rest;
        }
        Ok(answer)
    }

    #[test]
    fn statuses_are_those_of_the_response_and_not_of_interim_ones() {
        let mut out = Vec::new();
        head(&mut out, &[(":status", "103"), ("link", "</a>")], false);
        assert_eq!(answered(&out).unwrap().status, None);
        head(&mut out, &[(":status", "204")], true);
        assert_eq!(answered(&out).unwrap().status, Some(204));
        for _ in 0..=MAX_INTERIM {
            out.splice(0..0, {
                let mut one = Vec::new();
                head(&mut one, &[(":status", "100")], false);
                one
            });
        }
        assert_eq!(answered(&out).err(), Some("too many interim responses"));
    }

    #[test]
    fn what_would_be_refused_of_a_response_is_no_answer() {
        for fields in [
            &[("a", "b")][..],
            &[(":status", "20")],
            &[(":status", "+20")],
            &[(":status", "099")],
            &[(":status", "200"), (":status", "200")],
            &[(":status", "200"), ("a b", "c")],
            &[(":status", "200"), ("connection", "close")],
            &[(":status", "200"), ("a", " b")],
        ] {
            let mut out = Vec::new();
            head(&mut out, fields, true);
            assert!(answered(&out).is_err(), "{fields:?}");
        }
    }

    #[test]
    fn a_call_is_answered_by_its_trailers() {
        let serving = |grpc_status: &str, message: &[u8]| {
            let mut out = Vec::new();
            head(&mut out, &[(":status", "200")], false);
            frame::push_data_header(&mut out, STREAM, message.len() as u32, false);
            out.extend_from_slice(message);
            assert_eq!(answered(&out).unwrap().health(), None, "the trailers are still to come");
            head(&mut out, &[("grpc-status", grpc_status)], true);
            answered(&out).unwrap().health()
        };
        assert_eq!(serving("0", b"\0\0\0\0\x02\x08\x01"), Some(SERVING));
        assert_eq!(serving("0", b"\0\0\0\0\x02\x08\x02"), Some(NOT_SERVING));
        assert_eq!(serving("5", b"\0\0\0\0\x02\x08\x01"), Some(NOT_SERVING));
    }
}
