//! A filter with a configuration, as a plugin.

use std::cell::RefCell;
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use weir_plugin::{
    BodyCx, Failure, Flow, HookCxMut, Io, LocalFuture, PerRequest, Phases, Plugin, Request, RequestCx, ResponseCx,
    Side, Slot, lend,
};
use weir_script::Services;
use weir_wire::method::Method;

use crate::call::{Answer, Call, ServiceRequest, Stage};
use crate::filter::Filter;
use crate::vm::{Action, Vm};
use crate::wait;

/// The failure of a request whose filter has failed; the reason is in the log.
const FAILED: Failure = Failure { status: 503, side: Side::Gateway, reason: "filter failed" };

/// The phase in which a filter sees requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RequestPhase {
    /// Before the caller is known.
    Rewrite,
    /// When the caller is known.
    #[default]
    Access,
}

/// A filter with a configuration.
pub struct Wasm {
    filter: &'static Filter,
    conf: Arc<[u8]>,
    phase: RequestPhase,
    services: Services,
    root: Slot<Root>,
    stream: PerRequest<Stream>,
}

/// The context of the configuration in a worker's machine. It is ended when it is dropped.
struct Root {
    vm: Weak<RefCell<Vm>>,
    number: u64,
    id: i32,
}

impl Drop for Root {
    fn drop(&mut self) {
        let Some(vm) = self.vm.upgrade() else { return };
        close(&vm, self.id);
    }
}

/// Ends a context.
fn close(vm: &RefCell<Vm>, id: i32) {
    // Only a machine that drops what is its own while it runs is borrowed.
    if let Ok(mut vm) = vm.try_borrow_mut()
        && let Err(reason) = vm.close(id)
    {
        tracing::error!("a filter has failed at the end of a request or of a configuration: {reason}");
    }
}

/// The context of a request. It is ended when it is dropped.
struct Stream {
    vm: Rc<RefCell<Vm>>,
    id: i32,
    /// Requests to services that the filter waits for.
    requests: Vec<ServiceRequest>,
    /// True once the body of the request is waited for, or was seen.
    awaits_body: bool,
    /// True while the filter holds the request.
    is_paused: bool,
    /// True once the filter has failed with this request, whose answer it does not see.
    has_failed: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        close(&self.vm, self.id);
    }
}

impl fmt::Debug for Wasm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wasm").field("filter", &self.filter.name).finish_non_exhaustive()
    }
}

impl Wasm {
    /// A filter with this configuration.
    #[must_use]
    pub fn new(filter: &'static Filter, conf: &str, phase: RequestPhase, services: Services) -> Self {
        Self {
            filter,
            conf: Arc::from(conf.as_bytes()),
            phase,
            services,
            root: Slot::default(),
            stream: PerRequest::new(),
        }
    }

    /// The phases that a filter needs.
    #[must_use]
    pub fn phases_of(filter: &Filter, phase: RequestPhase) -> Phases {
        let request = match phase {
            RequestPhase::Rewrite => Phases::REWRITE,
            RequestPhase::Access => Phases::ACCESS,
        };
        let response = Phases::RESPONSE.and(Phases::BODY);
        let has_response = filter.has("proxy_on_response_headers") || filter.has("proxy_on_response_body");
        request.and(if has_response { response } else { Phases::NONE }).and(Phases::LOG)
    }

    /// This worker's machine and the context of the configuration in it.
    fn machine(&self) -> Result<(Rc<RefCell<Vm>>, i32), String> {
        let vm = self.filter.vm()?;
        let number = vm.borrow().number;
        if let Some(root) = self.root.get().filter(|root| root.number == number) {
            return Ok((vm, root.id));
        }
        let id = vm.borrow_mut().configure(&self.conf)?;
        self.root.put(Root { vm: Rc::downgrade(&vm), number, id });
        Ok((vm, id))
    }

    /// Logs why the filter has failed, which refuses the request.
    #[cold]
    fn report(&self, cx: &mut impl HookCxMut, reason: &str) -> Flow {
        if let Some(stream) = self.stream.get_mut(cx) {
            stream.has_failed = true;
        }
        tracing::error!("{}: {reason}", self.filter.name);
        Flow::Abort(FAILED)
    }

    /// The filter sees the head of the request, or goes on with its body.
    fn request(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.stream.get(cx).is_some_and(|stream| stream.awaits_body) {
            return self.request_body(cx);
        }
        let opened = self.machine().and_then(|(vm, root)| {
            let id = lend(cx, || vm.borrow_mut().open(root))?;
            Ok((vm, id))
        });
        let (vm, id) = match opened {
            Ok(opened) => opened,
            Err(reason) => return self.report(cx, &reason),
        };
        self.stream.put(
            cx,
            Stream {
                vm: Rc::clone(&vm),
                id,
                requests: Vec::new(),
                awaits_body: false,
                is_paused: false,
                has_failed: false,
            },
        );
        let call = Call { stage: Stage::Request, context: id, ..Call::default() };
        let request = cx.request();
        let fields = request.head.fields.iter(request.buffer.bytes()).count();
        let is_all = has_no_body(request);
        match lend(cx, || vm.borrow_mut().on_request_headers(id, (fields, is_all), call)) {
            Ok((action, call)) => self.after_request(cx, action, call),
            Err(reason) => self.report(cx, &reason),
        }
    }

    /// Goes on after a call that has seen the request.
    fn after_request(&self, cx: &mut RequestCx<'_>, action: Action, call: Call) -> Flow {
        if let Some(made) = call.answer {
            return answer(cx, made);
        }
        let Some(stream) = self.stream.get_mut(cx) else { return Flow::Abort(FAILED) };
        stream.is_paused = action == Action::Pause && !call.is_resumed;
        if !call.requests.is_empty() {
            stream.requests = call.requests;
            return Flow::Suspend;
        }
        let wants_body = stream.vm.borrow().stream(stream.id).is_some_and(|kept| kept.wants_request_body)
            && self.filter.has("proxy_on_request_body");
        if wants_body && !stream.awaits_body {
            stream.awaits_body = true;
            return if cx.body().is_some() { self.request_body(cx) } else { Flow::AwaitBody };
        }
        if stream.is_paused {
            return self.report(cx, "the filter has paused the request and waits for nothing that comes");
        }
        Flow::Continue
    }

    /// The filter sees the whole body of the request.
    fn request_body(&self, cx: &mut RequestCx<'_>) -> Flow {
        let Some(stream) = self.stream.get(cx) else { return Flow::Abort(FAILED) };
        let (vm, id) = (Rc::clone(&stream.vm), stream.id);
        let body = Some(cx.body().unwrap_or_default().to_vec());
        let call = Call { stage: Stage::Request, context: id, body, ..Call::default() };
        match lend(cx, || vm.borrow_mut().on_request_body(id, call)) {
            Ok((action, mut call)) => {
                if call.has_changed_body {
                    cx.replace_body(&call.body.take().unwrap_or_default());
                }
                self.after_request(cx, action, call)
            }
            Err(reason) => self.report(cx, &reason),
        }
    }

    /// Asks the services that the filter waits for, until it lets the request go on or answers it.
    async fn wait(&self, cx: &mut RequestCx<'_>, io: &dyn Io) -> Flow {
        loop {
            let Some(stream) = self.stream.get_mut(cx) else { return Flow::Abort(FAILED) };
            let (vm, id) = (Rc::clone(&stream.vm), stream.id);
            let action = if stream.is_paused { Action::Pause } else { Action::Continue };
            let mut ended = Call::default();
            for request in std::mem::take(&mut stream.requests) {
                let asked = wait::ask(&self.services, &request, io).await;
                if let Err(reason) = &asked {
                    tracing::warn!("{}: {}: {reason}", self.filter.name, request.address);
                }
                let call = Call { stage: Stage::Request, context: id, service_answer: asked.ok(), ..Call::default() };
                match lend(cx, || vm.borrow_mut().on_service_answer(id, request.number, call)) {
                    Ok(call) => {
                        ended.is_resumed |= call.is_resumed;
                        ended.answer = ended.answer.or(call.answer);
                        ended.requests.extend(call.requests);
                    }
                    Err(reason) => return self.report(cx, &reason),
                }
            }
            match self.after_request(cx, action, ended) {
                Flow::Suspend => {}
                flow => return flow,
            }
        }
    }

    fn on_response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let Some(stream) = self.stream.get(cx).filter(|stream| !stream.has_failed) else { return Flow::Continue };
        let (vm, id) = (Rc::clone(&stream.vm), stream.id);
        let call = Call { stage: Stage::Response, context: id, ..Call::default() };
        let response = cx.response();
        let fields = response.head.fields.iter(response.buffer.bytes()).count();
        let call = match lend(cx, || vm.borrow_mut().on_response_headers(id, fields, call)) {
            Ok((_, call)) => call,
            Err(reason) => return self.report(cx, &reason),
        };
        if let Some(made) = call.answer {
            replace(cx, &made);
            return Flow::Continue;
        }
        let wants_body = vm.borrow().stream(id).is_some_and(|kept| kept.wants_response_body);
        if wants_body && self.filter.has("proxy_on_response_body") {
            cx.filter_body(true);
        }
        Flow::Continue
    }

    fn on_body(&self, cx: &mut BodyCx<'_>, piece: &mut Vec<u8>) -> Flow {
        let Some(stream) = self.stream.get(cx).filter(|stream| !stream.has_failed) else { return Flow::Continue };
        let (vm, id) = (Rc::clone(&stream.vm), stream.id);
        if !vm.borrow().stream(id).is_some_and(|kept| kept.wants_response_body) {
            return Flow::Continue;
        }
        let call =
            Call { stage: Stage::ResponseBody, context: id, body: Some(std::mem::take(piece)), ..Call::default() };
        match lend(cx, || vm.borrow_mut().on_response_body(id, call)) {
            Ok((_, call)) => {
                *piece = call.body.unwrap_or_default();
                Flow::Continue
            }
            Err(reason) => self.report(cx, &reason),
        }
    }
}

/// True for a request of which the fields say that it has no body.
fn has_no_body(request: &Request) -> bool {
    let has = |name| request.field_str(name).is_some();
    matches!(request.method(), Method::Get | Method::Head) && !has("content-length") && !has("transfer-encoding")
}

/// Answers a request.
fn answer(cx: &mut RequestCx<'_>, made: Answer) -> Flow {
    let mut answer = cx.reply(made.status);
    for (name, value) in made.fields.iter().filter(|(name, _)| crate::headers::is_own(name)) {
        answer = answer.named_bytes(name, value);
    }
    answer.whole_body(made.body).done()
}

/// Puts an answer of the filter in the place of a response.
fn replace(cx: &mut ResponseCx<'_>, made: &Answer) {
    cx.set_status(made.status);
    for (name, value) in made.fields.iter().filter(|(name, _)| crate::headers::is_own(name)) {
        if let Some(name) = std::str::from_utf8(name).ok().and_then(weir_wire::name::FieldName::new) {
            cx.set_field(&name, value);
        }
    }
    cx.replace_body(&made.body);
}

impl Plugin for Wasm {
    fn phases(&self, declared: Phases) -> Phases {
        declared
    }

    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.phase == RequestPhase::Rewrite { self.request(cx) } else { Flow::Continue }
    }

    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if self.phase == RequestPhase::Access { self.request(cx) } else { Flow::Continue }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(self.wait(cx, io))
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        self.on_response(cx)
    }

    fn body(&self, cx: &mut BodyCx<'_>, piece: &mut Vec<u8>, _: bool) -> Flow {
        self.on_body(cx, piece)
    }

    fn before_log(&self, cx: &mut RequestCx<'_>) {
        let Some(stream) = self.stream.get(cx).filter(|stream| !stream.has_failed) else { return };
        let (vm, id) = (Rc::clone(&stream.vm), stream.id);
        if self.filter.has("proxy_on_log") && !vm.borrow().is_dead {
            let call = Call { stage: Stage::Log, context: id, ..Call::default() };
            if let Err(reason) = lend(cx, || vm.borrow_mut().on_log(id, call)) {
                let _ = self.report(cx, &reason);
            }
        }
    }
}
