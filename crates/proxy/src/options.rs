//! The settings as the path of a request reads them: plain numbers.

use ipnet::IpNet;
use weir_config::Settings;
use weir_wire::head::Limits;
use weir_wire::name::FieldName;
use weir_wire::target::PathRules;

use crate::http2;

/// Settings that workers need. Times are milliseconds.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) head: Limits,
    pub(crate) response_head: Limits,
    pub(crate) http2: http2::Limits,
    pub(crate) paths: PathRules,
    /// True when a path may have readings that lead to other routes.
    pub(crate) ambiguous_paths: bool,
    /// Bytes; `u64::MAX`: no limit.
    pub(crate) body_size: u64,
    /// Bytes a second; 0: none.
    pub(crate) body_rate: u64,
    pub(crate) body_rate_grace: u64,
    pub(crate) buffered_body: usize,
    /// Bytes of a body that variables read.
    pub(crate) body_variables: u64,
    pub(crate) mirror_copies: u32,
    pub(crate) mirror_body: u64,
    pub(crate) callouts: u32,
    pub(crate) callout_body: usize,
    pub(crate) connections: usize,
    pub(crate) udp_sessions: usize,
    /// `u64::MAX`: no limit.
    pub(crate) requests_per_connection: u64,
    pub(crate) upstream_idle: usize,
    /// 0: no node is set aside.
    pub(crate) set_aside_ms: u64,
    pub(crate) head_ms: u64,
    pub(crate) handshake_ms: u64,
    pub(crate) idle_ms: u64,
    /// Age of a client connection at its last request; `u64::MAX`: no limit.
    pub(crate) connection_age_ms: u64,
    pub(crate) body_ms: u64,
    pub(crate) send_ms: u64,
    /// For how long a stream may be silent both ways, where its upstream does not say it.
    pub(crate) stream_idle_ms: u64,
    /// The same for a session of UDP.
    pub(crate) udp_idle_ms: u64,
    /// 0: that of the upstream.
    pub(crate) websocket_ms: u64,
    /// Time from the end of idle connections in a drain to the end of WebSocket.
    pub(crate) drain_websocket_ms: u64,
    /// Deadline of a hook that waits.
    pub(crate) plugin_ms: u64,
    pub(crate) trusted_proxies: Box<[IpNet]>,
    /// Peers whose PROXY headers are believed.
    pub(crate) proxy_trusted: Box<[IpNet]>,
    pub(crate) real_ip: Option<RealIp>,
    pub(crate) show_upstream_status: bool,
    /// `Server: …` with its line end; empty: the upstream's own goes through.
    pub(crate) server_line: Box<[u8]>,
}

/// Taking the client's address from a field.
#[derive(Debug, Clone)]
pub(crate) struct RealIp {
    pub(crate) field: FieldName,
    pub(crate) trusted: Box<[IpNet]>,
    pub(crate) recursive: bool,
}

impl Options {
    pub(crate) fn new(settings: &Settings) -> Self {
        let limits = &settings.limits;
        let unlimited = |n: u64| if n == 0 { u64::MAX } else { n };
        let ms = |d: std::time::Duration| d.as_millis() as u64;
        let head = Limits {
            head: limits.head_size.as_usize(),
            fields: usize::from(limits.header_count),
            target: limits.target_length.as_usize(),
        };
        let server = settings.server_header.value().unwrap_or_default();
        let real_ip = &settings.real_ip;
        Self {
            head,
            http2: http2_limits(settings),
            response_head: Limits { head: limits.response_head_size.as_usize(), ..head },
            paths: PathRules {
                delete_tail_slash: settings.uri.delete_tail_slash,
                servlet: settings.uri.normalize_like_servlet,
                keep_encoded_slash: settings.uri.match_encoded_slash,
            },
            ambiguous_paths: settings.uri.allow_ambiguous,
            body_size: unlimited(limits.body_size.bytes()),
            body_rate: limits.body_rate.bytes(),
            body_rate_grace: ms(limits.body_rate_grace.duration()),
            buffered_body: limits.buffered_body.as_usize(),
            body_variables: limits.body_variables.bytes().min(limits.buffered_body.bytes()),
            mirror_copies: limits.mirror_copies,
            mirror_body: limits.mirror_body.bytes(),
            callouts: limits.callouts,
            callout_body: limits.callout_body.as_usize(),
            connections: limits.connections as usize,
            udp_sessions: limits.udp_sessions as usize,
            requests_per_connection: unlimited(u64::from(limits.requests_per_connection)),
            upstream_idle: limits.upstream_idle_connections as usize,
            set_aside_ms: ms(settings.upstream.set_aside.duration()),
            handshake_ms: ms(settings.timeouts.handshake.duration()),
            head_ms: ms(settings.timeouts.head.duration()),
            idle_ms: ms(settings.timeouts.idle.duration()),
            connection_age_ms: unlimited(ms(settings.timeouts.connection_age.duration())),
            body_ms: ms(settings.timeouts.body.duration()),
            send_ms: ms(settings.timeouts.send.duration()),
            stream_idle_ms: ms(settings.timeouts.stream_idle.duration()),
            udp_idle_ms: ms(settings.timeouts.udp_idle.duration()),
            websocket_ms: ms(settings.timeouts.websocket.duration()),
            drain_websocket_ms: ms(settings.timeouts.drain_websocket.duration()),
            plugin_ms: ms(settings.timeouts.plugin.duration()),
            proxy_trusted: settings.proxy_protocol.trusted.iter().map(|r| r.net()).collect(),
            trusted_proxies: settings.trusted_proxies.iter().map(|r| r.net()).collect(),
            real_ip: FieldName::new(&real_ip.header).filter(|_| !real_ip.trusted.is_empty()).map(|field| RealIp {
                field,
                trusted: real_ip.trusted.iter().map(|r| r.net()).collect(),
                recursive: real_ip.recursive,
            }),
            show_upstream_status: settings.show_upstream_status_in_response_header,
            server_line: if server.is_empty() {
                Box::default()
            } else {
                format!("Server: {server}\r\n").into_bytes().into()
            },
        }
    }
}

fn http2_limits(settings: &Settings) -> http2::Limits {
    let (http2, limits) = (&settings.http2, &settings.limits);
    http2::Limits {
        streams: http2.concurrent_streams,
        stream_window: http2.stream_window.as_usize() as u32,
        connection_window: http2.connection_window.as_usize() as u32,
        frame_size: http2.frame_size.as_usize() as u32,
        write_buffer: http2.write_buffer.as_usize(),
        head: limits.head_size.as_usize(),
        fields: usize::from(limits.header_count),
        continuations: http2.continuations,
        resets: http2.resets,
        control_frames: http2.control_frames,
        empty_frames: http2.empty_frames,
    }
}
