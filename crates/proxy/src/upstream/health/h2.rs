//! The call of a gRPC health check: `grpc.health.v1.Health/Check` on a connection of its own.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use weir_wire::http2::frame::{self, ACK, END_HEADERS, END_STREAM, Header, HeaderBlock, Kind, Setting};
use weir_wire::http2::hpack::{DEFAULT_TABLE_SIZE, Decoder, Encoder};
use weir_wire::http2::{DEFAULT_FRAME_SIZE, PREFACE};

use super::probe::Finding;

/// Most bytes of an answer: its fields, and its message.
const MOST: usize = 64 << 10;
/// Most frames of an answer.
const MOST_FRAMES: usize = 1024;
/// The stream of the call.
const STREAM: u32 = 1;
/// Statuses that an answer counts as.
const SERVING: u16 = 200;
const NOT_SERVING: u16 = 503;

/// A gRPC call that requests the health of the whole server.
#[derive(Debug)]
pub(super) struct Call {
    bytes: Vec<u8>,
}

/// An answer so far.
#[derive(Default)]
struct Answer {
    /// Header block that has begun.
    block: Vec<u8>,
    is_http_ok: bool,
    is_grpc_ok: bool,
    message: Vec<u8>,
    has_ended: bool,
}

impl Call {
    pub(super) fn new(host: &str, has_tls: bool) -> Self {
        let mut bytes = PREFACE.to_vec();
        frame::push_settings(&mut bytes, &[Setting::EnablePush(false)]);
        let block = HeaderBlock::begin(&mut bytes, STREAM);
        let mut encoder = Encoder::new();
        encoder.begin(&mut bytes);
        encoder.push_method(&mut bytes, b"POST");
        encoder.push_scheme(&mut bytes, if has_tls { b"https" } else { b"http" });
        encoder.push_authority(&mut bytes, host.as_bytes());
        encoder.push_path(&mut bytes, b"/grpc.health.v1.Health/Check");
        encoder.push(&mut bytes, b"content-type", b"application/grpc");
        encoder.push(&mut bytes, b"te", b"trailers");
        let agent = concat!("weir/", env!("CARGO_PKG_VERSION"), " (health check)");
        encoder.push(&mut bytes, b"user-agent", agent.as_bytes());
        block.finish(&mut bytes, DEFAULT_FRAME_SIZE, false);
        // A message without fields: no compression, and a length of 0.
        frame::push_data_header(&mut bytes, STREAM, 5, true);
        bytes.extend_from_slice(&[0; 5]);
        Self { bytes }
    }

    /// Makes the call. An `Err` is a broken connection.
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
            match answer.take(header, &payload, &mut decoder, &mut reply) {
                Ok(()) => {}
                Err(reason) => return Ok(Finding::NotHttp(reason)),
            }
            if answer.has_ended {
                let found = answer.status();
                *status = Some(found);
                return Ok(Finding::Status(found));
            }
            stream.write_all(&reply).await?;
            stream.flush().await?;
        }
        Ok(Finding::NotHttp("too many frames before an answer"))
    }
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
            Kind::GoAway if frame::go_away(payload).last_stream < STREAM => return Err("call refused by GOAWAY"),
            Kind::ResetStream if header.stream == STREAM => return Err("call reset"),
            Kind::Data | Kind::Headers | Kind::Continuation if header.stream == STREAM => {
                let content = frame::payload(header, payload).map_err(|error| error.reason)?;
                let to = if header.kind == Kind::Data { &mut self.message } else { &mut self.block };
                if to.len() + content.len() > MOST {
                    return Err("answer too large");
                }
                to.extend_from_slice(content);
                if header.kind != Kind::Data && header.has(END_HEADERS) {
                    self.take_fields(decoder)?;
                }
                self.has_ended |= header.kind != Kind::Continuation && header.has(END_STREAM);
            }
            _ => {}
        }
        Ok(())
    }

    fn take_fields(&mut self, decoder: &mut Decoder) -> Result<(), &'static str> {
        let block = std::mem::take(&mut self.block);
        let decoded = decoder.decode(&block, MOST, &mut Vec::new(), |field| match (field.name, field.value) {
            (b":status", status) => self.is_http_ok = status == b"200",
            (b"grpc-status", status) => self.is_grpc_ok = status == b"0",
            _ => {}
        });
        decoded.map(drop).map_err(|error| error.reason)
    }

    /// HTTP status that the response counts as.
    fn status(&self) -> u16 {
        // Behind the flags and the length of the message its one field, `status`, is SERVING.
        let serves = self.message.get(5..) == Some(&[8, 1]);
        if self.is_http_ok && self.is_grpc_ok && serves { SERVING } else { NOT_SERVING }
    }
}
