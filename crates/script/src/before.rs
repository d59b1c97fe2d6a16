//! A plugin with a function before it, which runs before each of its hooks: APISIX's `_meta.pre_function`.

use std::sync::Arc;
use std::time::Duration;

use weir_expr::Source;
use weir_plugin::{
    BodyCx, BuildCx, Flow, Invalid, Io, LocalFuture, LogCx, PerRequest, Phases, Plugin, RequestBodyCx, RequestCx,
    ResponseCx, Share, UpstreamCx,
};

use crate::hook::Hook;
use crate::script::{Form, Script};

/// The field with the function.
const FIELD: &str = "_meta.pre_function";

/// Hooks before which the function runs.
const HOOKS: [Hook; 5] = [Hook::Rewrite, Hook::Access, Hook::HeaderFilter, Hook::BodyFilter, Hook::Log];

/// A plugin with a function before it.
pub struct Before {
    script: Script,
    plugin: Arc<dyn Plugin>,
    /// The hook of a request phase before which the function has run: the plugin may come back from a wait.
    done: PerRequest<Hook>,
}

impl Before {
    /// Puts a function before a plugin.
    ///
    /// # Errors
    /// The text does not compile, or returns no function.
    pub fn new(plugin: Arc<dyn Plugin>, text: &str, build: &BuildCx<'_>) -> Result<Self, Invalid> {
        let texts = HOOKS.map(|hook| (hook, vec![text.to_owned()]));
        let conf = build.conf.to_json().to_string();
        let script = Script::check(FIELD, Form::Before, texts.into(), conf);
        let script = script.map_err(|error| Invalid::new(FIELD, error.reason))?.build(build)?;
        Ok(Self { script, plugin, done: PerRequest::new() })
    }

    /// The function, and then the plugin, in a request phase.
    fn run(&self, cx: &mut RequestCx<'_>, hook: Hook) -> Flow {
        if self.done.get(cx) == Some(&hook) {
            return self.go_on(cx, hook);
        }
        match self.script.run(cx, hook) {
            Flow::Continue => {
                self.done.put(cx, hook);
                self.go_on(cx, hook)
            }
            flow => flow,
        }
    }

    fn go_on(&self, cx: &mut RequestCx<'_>, hook: Hook) -> Flow {
        match hook {
            Hook::Rewrite => self.plugin.rewrite(cx),
            _ => self.plugin.access(cx),
        }
    }
}

impl Plugin for Before {
    fn phases(&self, declared: Phases) -> Phases {
        self.plugin.phases(declared)
    }

    fn credential_argument(&self) -> Option<&[u8]> {
        self.plugin.credential_argument()
    }

    fn credential_arguments(&self) -> Vec<&[u8]> {
        self.plugin.credential_arguments()
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        self.run(cx, Hook::Rewrite)
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        self.run(cx, Hook::Access)
    }

    fn shares(&self, source: &dyn Source) -> &[Share] {
        self.plugin.shares(source)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        let Some(hook) = self.script.waits(cx) else { return self.plugin.request_io(cx, io) };
        Box::pin(async move {
            match self.script.wait(cx, io).await {
                Flow::Continue => {}
                flow => return flow,
            }
            self.done.put(cx, hook);
            match self.go_on(cx, hook) {
                Flow::Suspend => self.plugin.request_io(cx, io).await,
                flow => flow,
            }
        })
    }

    fn response_io<'a>(&'a self, cx: &'a mut ResponseCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        self.plugin.response_io(cx, io)
    }

    fn wait_limit(&self) -> Option<Duration> {
        self.plugin.wait_limit()
    }

    fn upstream_request(&self, cx: &mut UpstreamCx<'_>) -> Flow {
        self.plugin.upstream_request(cx)
    }

    fn request_body(&self, cx: &mut RequestBodyCx<'_>, piece: &mut Vec<u8>, last: bool) -> Flow {
        self.plugin.request_body(cx, piece, last)
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        match self.script.run_head(cx) {
            Flow::Continue => self.plugin.response(cx),
            flow => flow,
        }
    }

    fn encode(&self, cx: &mut ResponseCx<'_>) -> Flow {
        self.plugin.encode(cx)
    }

    fn body(&self, cx: &mut BodyCx<'_>, chunk: &mut Vec<u8>, last: bool) -> Flow {
        match self.script.run_body(cx, chunk, last) {
            Flow::Continue => self.plugin.body(cx, chunk, last),
            flow => flow,
        }
    }

    fn before_log(&self, cx: &mut RequestCx<'_>) {
        self.script.run_log(cx);
        self.plugin.before_log(cx);
    }

    fn log(&self, cx: &LogCx<'_>) {
        self.plugin.log(cx);
    }
}
