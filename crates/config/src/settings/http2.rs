use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{KIB, MIB, Size};

/// HTTP/2 with clients. `limits` and `timeouts` hold for each of its streams as for a connection over HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http2 {
    /// Listeners with TLS offer HTTP/2 (ALPN `h2`) if true, unless their own `http2` is set otherwise. Without TLS a
    /// listener of `listen.http` takes HTTP/2 by prior knowledge only where its `http2` is true.
    pub enabled: bool,
    /// Streams that a client may have open on one connection at one time. A further one is refused with REFUSED_STREAM,
    /// and may be sent again.
    #[schemars(range(min = 1, max = 10_000))]
    pub concurrent_streams: u32,
    /// Bytes of a request body that a client may send ahead on one stream, held until they can be passed on.
    pub stream_window: Size<{ 64 * KIB }, { 16 * MIB }>,
    /// Bytes of request bodies that a client may send ahead on all streams of a connection together, and so the most that
    /// is held of them.
    pub connection_window: Size<{ 64 * KIB }, { 64 * MIB }>,
    /// Bytes of content in a frame from a client. A longer one closes the connection with FRAME_SIZE_ERROR.
    pub frame_size: Size<{ 16 * KIB }, { MIB }>,
    /// Bytes of response bodies that wait to be written to one connection, over all of its streams. Beyond that streams
    /// wait; with twice as much waiting nothing more is read from the client.
    pub write_buffer: Size<{ 16 * KIB }, { 16 * MIB }>,
    /// CONTINUATION frames that one header section may have. One more closes the connection with ENHANCE_YOUR_CALM.
    #[schemars(range(max = 1_024))]
    pub continuations: u32,
    /// Streams that may be reset before their response is complete in 10 seconds, by the client or for its errors, beside
    /// one for each response that was completed. One more closes the connection with ENHANCE_YOUR_CALM.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub resets: u32,
    /// Frames in 10 seconds that carry neither requests nor content: SETTINGS, PING, PRIORITY, WINDOW_UPDATE, frames of
    /// closed streams and of unknown types. Each request allows one more, each frame of a response two. A further frame
    /// closes the connection with ENHANCE_YOUR_CALM.
    #[schemars(range(min = 10, max = 10_000_000))]
    pub control_frames: u32,
    /// DATA frames in 10 seconds that have fewer than 4 bytes of content, or mostly padding, and end no stream. One more
    /// closes the connection with ENHANCE_YOUR_CALM.
    #[schemars(range(min = 10, max = 10_000_000))]
    pub empty_frames: u32,
}

impl Default for Http2 {
    fn default() -> Self {
        Self {
            enabled: true,
            concurrent_streams: 128,
            stream_window: Size::constant(64 * KIB),
            connection_window: Size::constant(MIB),
            frame_size: Size::constant(16 * KIB),
            write_buffer: Size::constant(64 * KIB),
            continuations: 16,
            resets: 200,
            control_frames: 2_000,
            empty_frames: 1_000,
        }
    }
}
