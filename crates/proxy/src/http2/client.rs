//! The role of a client: streams that are opened here, and the responses on them.

use weir_wire::http2::frame::{self, Setting};
use weir_wire::http2::{DEFAULT_WINDOW, Error, ErrorCode, MAX_STREAM, PREFACE};
use weir_wire::status;

use super::connection::Room;
use super::fields::is_sound;
use super::{Connection, FieldList, Stream};

/// Streams that a server may be asked to serve at one time before its settings are known (RFC 9113 section 6.5.2).
const STREAMS_AT_FIRST: u32 = 100;

/// State that only clients have.
#[derive(Debug)]
pub(super) struct ClientRole {
    /// Identifier of the next stream.
    next: u32,
    /// The server's SETTINGS_MAX_CONCURRENT_STREAMS.
    pub(super) streams: u32,
    /// True once the server has said that it serves no further streams.
    is_left: bool,
}

const fn malformed(reason: &'static str) -> Error {
    Error::stream(ErrorCode::ProtocolError, reason)
}

impl Connection {
    /// Puts out the preface and the settings of a client, and opens the connection's window.
    pub(crate) fn begin_as_client(&mut self) {
        self.client = Some(ClientRole { next: 1, streams: STREAMS_AT_FIRST, is_left: false });
        let limits = self.limits;
        let out = &mut self.room.out;
        out.extend_from_slice(PREFACE);
        let settings = [
            Setting::EnablePush(false),
            Setting::InitialWindowSize(limits.stream_window),
            Setting::MaxFrameSize(limits.frame_size),
            Setting::MaxHeaderListSize(u32::try_from(limits.head).unwrap_or(u32::MAX)),
        ];
        frame::push_settings(out, &settings);
        let more = limits.connection_window.saturating_sub(DEFAULT_WINDOW);
        if more > 0 {
            frame::push_window_update(out, 0, more);
            self.window += i64::from(more);
        }
    }

    /// True if another stream may be opened now, of which there are `most` at one time.
    pub(crate) fn has_place(&self, most: u32) -> bool {
        let Some(client) = &self.client else { return false };
        !self.is_dead()
            && !client.is_left
            && client.next < MAX_STREAM
            && self.room.open.len() < client.streams.min(most) as usize
    }

    /// True if no further stream can ever be opened.
    pub(crate) fn is_used_up(&self) -> bool {
        self.is_dead() || self.client.as_ref().is_none_or(|client| client.is_left || client.next >= MAX_STREAM)
    }

    /// Opens a stream for a request, whose head is to be put out next; its key. `has_no_content`: the response will have no
    /// content, whatever its fields say.
    pub(crate) fn open_request(&mut self, has_no_content: bool) -> usize {
        let id = self.client.as_mut().map_or(1, |client| {
            let id = client.next;
            client.next += 2;
            id
        });
        self.last_stream = id;
        let key = self.open(id, false, None);
        if let Some(stream) = self.room.streams.get_mut(key) {
            stream.waits_for_head = true;
            stream.has_no_content = has_no_content;
        }
        key
    }

    /// Reason for the end of a stream, if it has ended.
    pub(crate) fn reset_code(&self, key: usize) -> Option<ErrorCode> {
        self.room.streams.get(key).map_or(Some(ErrorCode::Cancel), |stream| stream.reset)
    }

    /// Ends our side of a stream whose response is complete: its server reads no further.
    pub(super) fn stop_sending(&mut self, key: usize) {
        let Some(stream) = self.room.streams.get_mut(key) else { return };
        stream.stopped = true;
        stream.local_ended = true;
        stream.wake();
    }

    /// Returns the memory of a connection that has nothing to do.
    pub(crate) fn release_memory(&mut self) {
        let is_idle = self.room.open.is_empty() && self.room.input.is_empty() && self.block.is_none();
        if is_idle && self.pending() == 0 {
            self.room = Room::default();
        }
    }

    /// Asks the server for a sign of life.
    pub(crate) fn push_ping(&mut self) {
        frame::push_ping(&mut self.room.out, false, *b"weir ask");
        self.wake();
    }

    /// Takes a setting that concerns clients.
    ///
    /// # Errors
    /// The server says that it pushes.
    pub(super) fn client_setting(&mut self, setting: Setting) -> Result<(), Error> {
        let Some(client) = &mut self.client else { return Ok(()) };
        match setting {
            Setting::MaxConcurrentStreams(streams) => client.streams = streams,
            Setting::EnablePush(true) => {
                return Err(Error::connection(ErrorCode::ProtocolError, "SETTINGS_ENABLE_PUSH of a server"));
            }
            _ => {}
        }
        Ok(())
    }

    /// GOAWAY of a server: the streams above its last one were not served and can be sent again elsewhere.
    pub(super) fn leave(&mut self, payload: &[u8]) {
        let Some(client) = &mut self.client else { return };
        client.is_left = true;
        let last = frame::go_away(payload).last_stream;
        for at in 0..self.room.open.len() {
            if let Some((_, key)) = self.room.open.get(at).copied().filter(|(id, _)| *id > last) {
                self.end_early(key, ErrorCode::RefusedStream);
            }
        }
        self.wake();
    }

    /// A header section of an open stream that is no trailer section: of an interim or the final response. Its text goes
    /// ahead of the content, in the form of HTTP/1, for the one parser of responses.
    pub(super) fn response_head(&mut self, key: usize, ends: bool) -> Result<(), Error> {
        let Some(stream) = self.room.streams.get_mut(key) else { return Ok(()) };
        if self.room.fields.is_too_large() || stream.head_unread > self.limits.head {
            return Err(Error::stream(ErrorCode::EnhanceYourCalm, "response head too large"));
        }
        let head = write_head(&self.room.fields, stream)?;
        let is_interim = head.status < 200;
        if is_interim && ends {
            return Err(malformed("interim response that ends the stream"));
        }
        if !is_interim {
            stream.waits_for_head = false;
            let bodyless = stream.has_no_content || status::is_bodyless(head.status);
            stream.expected = head.length.filter(|_| !bodyless);
            if ends && stream.expected.is_some_and(|length| length > 0) {
                return Err(malformed("response without the content that it announces"));
            }
            stream.remote_ended = ends;
        }
        stream.waits_for_data = false;
        stream.wake();
        Ok(())
    }
}

/// Facts of a response head.
struct Head {
    status: u16,
    length: Option<u64>,
}

/// Appends a head to what was received on a stream (RFC 9113 section 8.3.2). A malformed head leaves nothing there: its
/// bytes would be counted as content, for which the peer may send more.
fn write_head(fields: &FieldList, stream: &mut Stream) -> Result<Head, Error> {
    let start = stream.received.len();
    let head = push_head(fields, &mut stream.received);
    if head.is_err() {
        stream.received.truncate(start);
    }
    stream.head_unread += stream.received.len() - start;
    head
}

fn push_head(fields: &FieldList, text: &mut Vec<u8>) -> Result<Head, Error> {
    let (mut status, mut length) = (None, None);
    for (name, value) in fields.iter() {
        if let Some(pseudo) = name.strip_prefix(b":") {
            let code = match (pseudo, value) {
                (b"status", [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9']) => {
                    u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0')
                }
                _ => return Err(malformed("pseudo-field that is not the status of a response")),
            };
            if code == 101 {
                return Err(malformed("switch of protocols over HTTP/2"));
            }
            if status.replace(code).is_some() {
                return Err(malformed("second status"));
            }
            status::push_line(text, code);
            continue;
        }
        if status.is_none() || !is_sound(name, value) {
            return Err(malformed("malformed field of a response"));
        }
        if name == b"content-length" {
            length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        }
        text.extend_from_slice(name);
        text.extend_from_slice(b": ");
        text.extend_from_slice(value);
        text.extend_from_slice(b"\r\n");
    }
    let Some(status) = status else { return Err(malformed("response without a status")) };
    text.extend_from_slice(b"\r\n");
    Ok(Head { status, length })
}

#[cfg(test)]
mod tests {
    use super::{FieldList, Stream, write_head};

    #[test]
    fn heads_are_text_and_malformed_ones_leave_nothing() {
        // Lines of `name value`, and the status and text of a good head.
        let cases = [
            (":status 204\na b", Some((204, "a: b\r\n\r\n"))),
            (":status 103\nlink </x>", Some((103, "link: </x>\r\n\r\n"))),
            (":status 200\na b\nc d\0", None),
            (":status 200\n:status 200", None),
            (":status 101", None),
            ("a b", None),
        ];
        for (fields, expected) in cases {
            let mut list = FieldList::default();
            for (name, value) in fields.lines().filter_map(|line| line.split_once(' ')) {
                list.push(name.as_bytes(), value.as_bytes());
            }
            let mut stream = Stream::default();
            stream.received.extend_from_slice(b"before");
            let status = write_head(&list, &mut stream).ok().map(|head| head.status);
            assert_eq!(status, expected.map(|(status, _)| status), "{fields:?}");
            let head = stream.received.strip_prefix(b"before").expect("what was there");
            assert_eq!(head.len(), stream.head_unread, "{fields:?}");
            assert_eq!(head.is_empty(), expected.is_none(), "{fields:?}");
            assert!(head.ends_with(expected.map_or("", |(_, text)| text).as_bytes()), "{fields:?}");
        }
    }
}
