//! Instances of loggers: an entry about each exchange, in the form that a destination takes.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::{Diagnostic, Node, Vars};
use weir_expr::Expr;
use weir_plugin::{
    BodyCx, BuildCx, CompileCx, Compiled, Flow, HookCx, Invalid, LogCx, Phases, Plugin, RequestBodyCx, RequestCx,
    ResponseCx, View,
};
use weir_telemetry::reports::{Channel, Destination, Frame};

use super::batch::BatchConf;
use super::body::Capture;
use super::entry::{Bodies, Entry};
use super::entry_conf::{EntryConf, FormatConf};

/// The phases that a logger may need.
pub(crate) const PHASES: Phases =
    Phases::ACCESS.and(Phases::REQUEST_BODY).and(Phases::RESPONSE).and(Phases::BODY).and(Phases::LOG);

/// Places of texts with variables in the configuration of every logger.
pub(crate) const TEMPLATES: &[&str] = &["log_format.*", "log_format_extra.*"];

/// The `plugin_metadata` that all loggers with batches have.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct LoggerMetadata {
    #[serde(flatten)]
    pub(crate) formats: FormatConf,
    /// Most entries of one destination that wait to be sent; one more is dropped.
    #[schemars(range(min = 1))]
    pub(crate) max_pending_entries: Option<usize>,
}

impl LoggerMetadata {
    /// Findings in the metadata.
    pub(crate) fn check(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        weir_config::schema::read::<Self>(metadata)?.formats.check(metadata)
    }
}

/// The common parts of a logger's configuration.
pub(crate) struct LoggerConf {
    pub(crate) entry: EntryConf,
    pub(crate) include_req_body_expr: Option<Vars>,
    pub(crate) include_resp_body_expr: Option<Vars>,
    pub(crate) batch: BatchConf,
}

/// The form in which a destination takes an entry.
pub(crate) trait Render: std::fmt::Debug + Send + Sync + 'static {
    /// Appends the record of an exchange that is over.
    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>);

    /// True if an exchange is reported, for a destination that takes a share of them.
    fn wants(&self) -> bool {
        true
    }
}

/// The entry as it is.
#[derive(Debug)]
pub(crate) struct Plain;

impl Render for Plain {
    fn render(&self, entry: &Entry, x: View<'_>, bodies: Bodies<'_>, out: &mut Vec<u8>) {
        entry.write(x, bodies, out);
    }
}

/// Compiles a logger with batches. `reach` gives its destination and the form of its records, when the rules around it
/// are known.
pub(crate) fn compile<R: Render>(
    plugin: &'static str,
    conf: LoggerConf,
    cx: &CompileCx<'_>,
    reach: impl FnOnce(&BatchConf, &BuildCx<'_>) -> Result<(Destination, Frame, R), Invalid> + Send + 'static,
) -> Option<Compiled> {
    let formats = conf.entry.formats(cx)?;
    Some(Compiled::build(move |build| {
        let metadata = build.metadata::<LoggerMetadata>()?;
        let (destination, frame, render) = reach(&conf.batch, build)?;
        let options = conf.batch.channel(plugin, destination, frame, metadata.max_pending_entries);
        Ok(Logging {
            entry: formats.entry(&metadata.formats, build)?,
            capture: conf.entry.capture(conf.include_req_body_expr, conf.include_resp_body_expr),
            matches: None,
            channel: super::channel(options, build),
            render,
        })
    }))
}

/// An instance of a logger.
#[derive(Debug)]
pub(crate) struct Logging<R = Plain> {
    pub(super) entry: Entry,
    pub(super) capture: Capture,
    /// Only exchanges of which one of these holds are reported.
    pub(super) matches: Option<Box<[Expr]>>,
    pub(super) channel: Arc<Channel>,
    pub(super) render: R,
}

impl<R: Render> Plugin for Logging<R> {
    fn phases(&self, _: Phases) -> Phases {
        let of_request = Phases::ACCESS.and(Phases::REQUEST_BODY);
        let request = if self.capture.request.is_some() { of_request } else { Phases::NONE };
        let response = if self.capture.response.is_some() { Phases::RESPONSE.and(Phases::BODY) } else { Phases::NONE };
        Phases::LOG.and(request).and(response)
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        self.capture.on_request(cx)
    }

    fn request_body(&self, cx: &mut RequestBodyCx<'_>, piece: &mut Vec<u8>, _: bool) -> Flow {
        self.capture.on_request_body(cx, piece);
        Flow::Continue
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        self.capture.on_response(cx);
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, piece: &mut Vec<u8>, _: bool) -> Flow {
        self.capture.on_body(cx, piece);
        Flow::Continue
    }

    fn log(&self, cx: &LogCx<'_>) {
        if self.matches.as_ref().is_some_and(|all| !all.iter().any(|one| one.eval(cx.source()))) {
            return;
        }
        if !self.render.wants() {
            return;
        }
        self.channel.report(|out| self.render.render(&self.entry, cx.view(), self.capture.bodies(cx), out));
    }
}
