//! A machine: an instance of a filter's module, with its memory and its functions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use wasmi::{Error, Instance, Store, StoreLimitsBuilder, TrapCode, TypedFunc, WasmParams, WasmResults};

use crate::call::{Call, Stage};
use crate::filter::Filter;
use crate::host::{Host, Stream};
use crate::options::options;

/// Starting a machine may take so many times the instructions of a call.
const STARTING: u64 = 20;

/// A function that takes in the answer of a service: context, number of the request, and how many fields, bytes and trailers
/// there are.
type OnServiceAnswer = TypedFunc<(i32, u32, i32, i32, i32), ()>;

/// Functions of a module; those that it has not are not called.
#[derive(Default)]
pub(crate) struct Functions {
    context_create: Option<TypedFunc<(i32, i32), ()>>,
    vm_start: Option<TypedFunc<(i32, i32), i32>>,
    configure: Option<TypedFunc<(i32, i32), i32>>,
    request_headers: Option<TypedFunc<(i32, i32, i32), i32>>,
    request_body: Option<TypedFunc<(i32, i32, i32), i32>>,
    response_headers: Option<TypedFunc<(i32, i32, i32), i32>>,
    response_body: Option<TypedFunc<(i32, i32, i32), i32>>,
    http_call_response: Option<OnServiceAnswer>,
    done: Option<TypedFunc<i32, i32>>,
    log: Option<TypedFunc<i32, ()>>,
    delete: Option<TypedFunc<i32, ()>>,
}

/// A machine.
pub(crate) struct Vm {
    store: Store<Host>,
    functions: Functions,
    /// Its number among all machines: contexts of another one are of no use in it.
    pub(crate) number: u64,
    next_context: i32,
    /// True once its code has failed: nobody knows in which state it is.
    pub(crate) is_dead: bool,
}

/// Return of a function that looks at an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Continue,
    Pause,
}

impl Vm {
    /// Starts a machine, without a context.
    pub(crate) fn start(filter: &Filter) -> Result<Self, String> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let host = Host {
            name: filter.name,
            limits: StoreLimitsBuilder::new().memory_size(options().memory).table_elements(1 << 20).memories(1).build(),
            memory: None,
            allocate: None,
            call: Call::default(),
            streams: Default::default(),
            next_request: 0,
        };
        let mut store = Store::new(filter.module.engine(), host);
        store.limiter(|host| &mut host.limits);
        let budget = options().instructions.saturating_mul(STARTING);
        let text = |error: Error| told(&error, budget);
        store.set_fuel(budget).map_err(text)?;
        let instance = filter.linker.instantiate_and_start(&mut store, &filter.module).map_err(text)?;
        let memory = instance.get_memory(&store, "memory");
        let allocate =
            ["proxy_on_memory_allocate", "malloc"].into_iter().find_map(|name| function(&store, instance, name));
        store.data_mut().memory = memory;
        store.data_mut().allocate = allocate;
        let functions = Functions::of(&store, instance);
        for name in ["_initialize", "_start"] {
            if let Some(start) = function::<(), ()>(&store, instance, name) {
                start.call(&mut store, ()).map_err(text)?;
                break;
            }
        }
        let number = NUMBER.fetch_add(1, Relaxed);
        Ok(Self { store, functions, number, next_context: 1, is_dead: false })
    }

    /// Makes the context of a configuration.
    pub(crate) fn configure(&mut self, conf: &Arc<[u8]>) -> Result<i32, String> {
        let root = self.next_id();
        let call = Call { context: root, conf: Some(Arc::clone(conf)), ..Call::default() };
        let size = i32::try_from(conf.len()).map_err(|_| "the configuration is too long".to_owned())?;
        let ((is_started, is_configured), _) = self.run(call, STARTING, |store, functions| {
            if let Some(create) = &functions.context_create {
                create.call(&mut *store, (root, 0))?;
            }
            let is_started = match &functions.vm_start {
                Some(start) => start.call(&mut *store, (root, 0))? != 0,
                None => true,
            };
            let is_configured = match &functions.configure {
                Some(configure) if is_started => configure.call(&mut *store, (root, size))? != 0,
                _ => true,
            };
            Ok((is_started, is_configured))
        })?;
        match (is_started, is_configured) {
            (true, true) => Ok(root),
            (false, _) => Err("the filter does not start: proxy_on_vm_start gave false".to_owned()),
            (_, false) => Err("the filter does not take the configuration: proxy_on_configure gave false".to_owned()),
        }
    }

    fn next_id(&mut self) -> i32 {
        loop {
            let id = self.next_context;
            self.next_context = id.checked_add(1).unwrap_or(1);
            if !self.store.data().streams.contains_key(&id) {
                return id;
            }
        }
    }

    /// Makes the context of a request.
    pub(crate) fn open(&mut self, root: i32) -> Result<i32, String> {
        let id = self.next_id();
        self.store.data_mut().streams.insert(id, Stream::default());
        self.run(Call { stage: Stage::Request, context: id, ..Call::default() }, 1, |store, functions| {
            functions.context_create.as_ref().map_or(Ok(()), |create| create.call(store, (id, root)))
        })?;
        Ok(id)
    }

    /// Ends the context of a request.
    pub(crate) fn close(&mut self, id: i32) -> Result<(), String> {
        if self.is_dead {
            return Ok(());
        }
        let ended = self.run(Call { context: id, ..Call::default() }, 1, |store, functions| {
            if let Some(done) = &functions.done {
                done.call(&mut *store, id)?;
            }
            functions.delete.as_ref().map_or(Ok(()), |delete| delete.call(store, id))
        });
        self.store.data_mut().streams.remove(&id);
        ended.map(|_| ())
    }

    pub(crate) fn stream(&self, id: i32) -> Option<&Stream> {
        self.store.data().streams.get(&id)
    }

    /// `fields` is the number of fields; the last part says that no body follows.
    pub(crate) fn on_request_headers(
        &mut self,
        id: i32,
        (fields, is_all): (usize, bool),
        call: Call,
    ) -> Result<(Action, Call), String> {
        self.act(call, |functions| &functions.request_headers, (id, fields as i32, i32::from(is_all)))
    }

    pub(crate) fn on_request_body(&mut self, id: i32, call: Call) -> Result<(Action, Call), String> {
        let size = size(&call);
        self.act(call, |functions| &functions.request_body, (id, size, 1))
    }

    pub(crate) fn on_response_headers(&mut self, id: i32, fields: usize, call: Call) -> Result<(Action, Call), String> {
        self.act(call, |functions| &functions.response_headers, (id, fields as i32, 0))
    }

    pub(crate) fn on_response_body(&mut self, id: i32, call: Call) -> Result<(Action, Call), String> {
        let size = size(&call);
        self.act(call, |functions| &functions.response_body, (id, size, 1))
    }

    /// Gives the answer of a service; without one the service could not be asked.
    pub(crate) fn on_service_answer(&mut self, id: i32, number: u32, call: Call) -> Result<Call, String> {
        let (fields, bytes) = call
            .service_answer
            .as_ref()
            .map_or((0, 0), |answer| (answer.fields.len() as i32, answer.body.len() as i32));
        let ran = self.run(call, 1, |store, functions| {
            let on_answer = functions.http_call_response.as_ref();
            on_answer.map_or(Ok(()), |on_answer| on_answer.call(store, (id, number, fields, bytes, 0)))
        });
        ran.map(|(_, call)| call)
    }

    pub(crate) fn on_log(&mut self, id: i32, call: Call) -> Result<(), String> {
        let ran =
            self.run(call, 1, |store, functions| functions.log.as_ref().map_or(Ok(()), |log| log.call(store, id)));
        ran.map(|_| ())
    }

    fn act(
        &mut self,
        call: Call,
        which: impl FnOnce(&Functions) -> &Option<TypedFunc<(i32, i32, i32), i32>>,
        arguments: (i32, i32, i32),
    ) -> Result<(Action, Call), String> {
        let (action, call) = self
            .run(call, 1, |store, functions| which(functions).as_ref().map_or(Ok(0), |f| f.call(store, arguments)))?;
        Ok((if action == 0 { Action::Continue } else { Action::Pause }, call))
    }

    /// Runs a call with its budget; the call comes back with what it has asked for.
    fn run<R>(
        &mut self,
        call: Call,
        times: u64,
        work: impl FnOnce(&mut Store<Host>, &Functions) -> Result<R, Error>,
    ) -> Result<(R, Call), String> {
        if self.is_dead {
            return Err("the filter has failed before".to_owned());
        }
        self.store.data_mut().call = call;
        let budget = options().instructions.saturating_mul(times);
        let ran = self.store.set_fuel(budget).and_then(|()| work(&mut self.store, &self.functions));
        let call = std::mem::take(&mut self.store.data_mut().call);
        match ran {
            Ok(result) => Ok((result, call)),
            Err(error) => {
                self.is_dead = true;
                Err(told(&error, budget))
            }
        }
    }
}

/// The text of an error of a call with this budget.
fn told(error: &Error, budget: u64) -> String {
    match error.as_trap_code() {
        Some(TrapCode::OutOfFuel) => {
            format!("the filter has taken more than {budget} instructions (wasm.instructions)")
        }
        _ => error.to_string(),
    }
}

fn size(call: &Call) -> i32 {
    call.body.as_ref().map_or(0, |body| i32::try_from(body.len()).unwrap_or(i32::MAX))
}

fn function<P: WasmParams, R: WasmResults>(
    store: &Store<Host>,
    instance: Instance,
    name: &str,
) -> Option<TypedFunc<P, R>> {
    instance.get_typed_func(store, name).ok()
}

impl Functions {
    fn of(store: &Store<Host>, instance: Instance) -> Self {
        Self {
            context_create: function(store, instance, "proxy_on_context_create"),
            vm_start: function(store, instance, "proxy_on_vm_start"),
            configure: function(store, instance, "proxy_on_configure"),
            request_headers: function(store, instance, "proxy_on_request_headers"),
            request_body: function(store, instance, "proxy_on_request_body"),
            response_headers: function(store, instance, "proxy_on_response_headers"),
            response_body: function(store, instance, "proxy_on_response_body"),
            http_call_response: function(store, instance, "proxy_on_http_call_response"),
            done: function(store, instance, "proxy_on_done"),
            log: function(store, instance, "proxy_on_log"),
            delete: function(store, instance, "proxy_on_delete"),
        }
    }
}
