//! Scripts as plugins.

use weir_plugin::{BodyCx, Flow, Io, LocalFuture, Phases, Plugin, RequestCx, ResponseCx, UpstreamCx};

use crate::hook::Hook;
use crate::script::Script;

impl Plugin for Script {
    fn phases(&self, declared: Phases) -> Phases {
        debug_assert!(declared.contains(self.needed_phases()));
        self.needed_phases()
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        self.run_first(cx)
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        self.run(cx, Hook::Access)
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        self.wait(cx, io)
    }

    fn upstream_request(&self, cx: &mut UpstreamCx<'_>) -> Flow {
        if cx.attempt() > 0 { Flow::Continue } else { self.run_before_proxy(cx) }
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        self.run_response(cx)
    }

    fn body(&self, cx: &mut BodyCx<'_>, chunk: &mut Vec<u8>, last: bool) -> Flow {
        self.run_body(cx, chunk, last)
    }

    fn before_log(&self, cx: &mut RequestCx<'_>) {
        self.run_log(cx);
    }
}
