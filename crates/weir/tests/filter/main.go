// A filter of proxy-wasm 0.2 that the tests drive by the field X-Do of requests. It calls the functions of the ABI itself.
package main

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"unsafe"
)

//go:wasmimport env proxy_log
func log(level uint32, text unsafe.Pointer, length uint32) uint32

//go:wasmimport env proxy_get_header_map_value
func getField(of uint32, name unsafe.Pointer, length uint32, value, size unsafe.Pointer) uint32

//go:wasmimport env proxy_get_header_map_pairs
func getFields(of uint32, value, size unsafe.Pointer) uint32

//go:wasmimport env proxy_add_header_map_value
func addField(of uint32, name unsafe.Pointer, length uint32, value unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_replace_header_map_value
func replaceField(of uint32, name unsafe.Pointer, length uint32, value unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_remove_header_map_value
func removeField(of uint32, name unsafe.Pointer, length uint32) uint32

//go:wasmimport env proxy_get_buffer_bytes
func getBuffer(buffer, start, most uint32, value, size unsafe.Pointer) uint32

//go:wasmimport env proxy_set_buffer_bytes
func setBuffer(buffer, start, length uint32, text unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_get_property
func getProperty(path unsafe.Pointer, length uint32, value, size unsafe.Pointer) uint32

//go:wasmimport env proxy_set_property
func setProperty(path unsafe.Pointer, length uint32, value unsafe.Pointer, size uint32) uint32

//go:wasmimport env proxy_get_shared_data
func getShared(name unsafe.Pointer, length uint32, value, size, change unsafe.Pointer) uint32

//go:wasmimport env proxy_set_shared_data
func setShared(name unsafe.Pointer, length uint32, value unsafe.Pointer, size, change uint32) uint32

//go:wasmimport env proxy_send_local_response
func answer(status uint32, details unsafe.Pointer, detailsLength uint32, body unsafe.Pointer, size uint32, fields unsafe.Pointer, length uint32, grpc int32) uint32

//go:wasmimport env proxy_http_call
func httpCall(upstream unsafe.Pointer, length uint32, fields unsafe.Pointer, fieldsLength uint32, body unsafe.Pointer, size uint32, trailers unsafe.Pointer, trailersLength, timeout uint32, number unsafe.Pointer) uint32

//go:wasmimport env proxy_continue_stream
func continueStream(of uint32) uint32

//go:wasmimport env proxy_define_metric
func defineMetric(kind uint32, name unsafe.Pointer, length uint32, number unsafe.Pointer) uint32

const (
	request, response, service        = 0, 2, 6
	requestBody, responseBody         = 0, 1
	serviceBody, configuration        = 4, 7
	goOn, pause                uint32 = 0, 1
)

var (
	// What the gateway has got memory for, until it is read.
	given = map[uintptr][]byte{}
	// The configuration of each context, and the one that a request's context belongs to.
	conf   = map[int32]string{}
	parent = map[int32]int32{}
)

//go:wasmexport proxy_abi_version_0_2_1
func abi() {}

//go:wasmexport proxy_on_memory_allocate
func allocate(size uint32) unsafe.Pointer {
	bytes := make([]byte, size)
	given[uintptr(unsafe.Pointer(&bytes[0]))] = bytes
	return unsafe.Pointer(&bytes[0])
}

func at(text string) (unsafe.Pointer, uint32) {
	return unsafe.Pointer(unsafe.StringData(text)), uint32(len(text))
}

// taken reads what a function of the gateway gives.
func taken(ask func(value, size unsafe.Pointer) uint32) (string, uint32) {
	var place, size uint32
	status := ask(unsafe.Pointer(&place), unsafe.Pointer(&size))
	if status != 0 || size == 0 {
		return "", status
	}
	bytes := given[uintptr(place)]
	delete(given, uintptr(place))
	return string(bytes[:size]), status
}

func field(of uint32, name string) string {
	value, _ := taken(func(value, size unsafe.Pointer) uint32 {
		text, length := at(name)
		return getField(of, text, length, value, size)
	})
	return value
}

func property(path string) string {
	value, _ := taken(func(value, size unsafe.Pointer) uint32 {
		text, length := at(path)
		return getProperty(text, length, value, size)
	})
	return value
}

func buffer(of uint32) string {
	value, _ := taken(func(value, size unsafe.Pointer) uint32 { return getBuffer(of, 0, 1<<20, value, size) })
	return value
}

func add(of uint32, name, value string) uint32 {
	n, nl := at(name)
	v, vl := at(value)
	return addField(of, n, nl, v, vl)
}

func replace(of uint32, name, value string) uint32 {
	n, nl := at(name)
	v, vl := at(value)
	return replaceField(of, n, nl, v, vl)
}

func set(path string) {
	p, pl := at(path)
	v, vl := at("true")
	setProperty(p, pl, v, vl)
}

func pairs(all ...string) string {
	var out bytes.Buffer
	number := func(n int) { binary.Write(&out, binary.LittleEndian, uint32(n)) }
	number(len(all) / 2)
	for _, text := range all {
		number(len(text))
	}
	for _, text := range all {
		out.WriteString(text + "\x00")
	}
	return out.String()
}

func write(level uint32, text string) {
	t, l := at(text)
	log(level, t, l)
}

//go:wasmexport proxy_on_context_create
func contextCreate(id, root int32) { parent[id] = root }

//go:wasmexport proxy_on_configure
func configure(id, size int32) uint32 {
	conf[id] = buffer(configuration)
	if conf[id] == "bad" || len(conf[id]) != int(size) {
		return 0
	}
	return 1
}

//go:wasmexport proxy_on_request_headers
func requestHeaders(id, count, all int32) uint32 {
	configured := conf[parent[id]]
	switch field(request, "x-do") {
	case "answer":
		body, size := at("made by the filter")
		fields, length := at(pairs("x-made", "yes", "content-length", "7"))
		answer(418, nil, 0, body, size, fields, length, -1)
		return pause
	case "call":
		upstream, length := at(configured)
		fields, fieldsLength := at(pairs(":method", "POST", ":path", "/asked?a=1", "x-own", "1"))
		body, size := at("question")
		var number uint32
		if status := httpCall(upstream, length, fields, fieldsLength, body, size, nil, 0, 2000, unsafe.Pointer(&number)); status != 0 {
			panic("the gateway does not call")
		}
		return pause
	case "loop":
		for n := 0; ; n++ {
			if n < 0 {
				return goOn
			}
		}
	case "panic":
		panic("asked for")
	case "memory":
		var kept [][]byte
		for n := 0; n < 1<<20; n++ {
			kept = append(kept, make([]byte, 1<<20))
		}
		return uint32(len(kept))
	case "pause":
		return pause
	case "request body":
		set("wasm_process_req_body")
	case "response body":
		set("wasm_process_resp_body")
	case "first line":
		replace(request, ":path", "/other?b=2")
		replace(request, ":authority", "other.test")
		replace(request, ":method", "PUT")
	case "wrong":
		statuses := ""
		for _, status := range []uint32{
			add(request, "content-length", "1"), add(request, "a b", "1"), add(request, "x", "a\r\nb: c"), replace(request, ":path", "no"),
			replace(request, ":status", "200"), add(9, "x", "1"), replace(response, "x", "1"),
		} {
			statuses += strconv.Itoa(int(status)) + " "
		}
		name, length := at("metric")
		var number uint32
		statuses += strconv.Itoa(int(defineMetric(0, name, length, unsafe.Pointer(&number))))
		add(request, "x-statuses", statuses)
	case "count":
		name, length := at("count")
		var change uint32
		value, _ := taken(func(value, size unsafe.Pointer) uint32 {
			return getShared(name, length, value, size, unsafe.Pointer(&change))
		})
		count, _ := strconv.Atoi(value)
		text, size := at(strconv.Itoa(count + 1))
		setShared(name, length, text, size, change)
		add(request, "x-count", strconv.Itoa(count+1))
	}
	all_, _ := taken(func(value, size unsafe.Pointer) uint32 { return getFields(request, value, size) })
	if int(binary.LittleEndian.Uint32([]byte(all_))) < int(count) {
		panic("there are fewer fields than told")
	}
	secret, length := at("x-secret")
	removeField(request, secret, length)
	replace(request, "x-replaced", "new")
	add(request, "x-filter", configured+" "+field(request, ":method")+" "+field(request, ":path")+" "+
		property("request\x00url_path")+" "+property("route_id")+" "+field(request, "host")+" "+strconv.Itoa(int(all)))
	return goOn
}

//go:wasmexport proxy_on_request_body
func onRequestBody(id, size, all int32) uint32 {
	body := buffer(requestBody)
	text, length := at(string(bytes.ToUpper([]byte(body))) + "+")
	setBuffer(requestBody, 0, uint32(len(body)), text, length)
	return goOn
}

//go:wasmexport proxy_on_http_call_response
func callResponse(id int32, number uint32, fields, size, trailers int32) {
	body := buffer(serviceBody)
	if fields == 0 {
		body, length := at("nobody answers")
		answer(504, nil, 0, body, length, nil, 0, -1)
		return
	}
	add(request, "x-called", field(service, ":status")+" "+field(service, "x-origin")+" "+strconv.Itoa(len(body)))
	continueStream(0)
}

//go:wasmexport proxy_on_response_headers
func responseHeaders(id, count, all int32) uint32 {
	add(response, "x-filtered", field(response, ":status")+" "+property("request\x00headers\x00x-do"))
	switch property("request\x00headers\x00x-do") {
	case "status":
		replace(response, ":status", "203")
	case "late answer":
		body, size := at("late")
		fields, length := at(pairs("x-late", "yes"))
		answer(502, nil, 0, body, size, fields, length, -1)
	case "late panic":
		panic("asked for")
	}
	return goOn
}

//go:wasmexport proxy_on_response_body
func onResponseBody(id, size, all int32) uint32 {
	text, length := at("the body had " + strconv.Itoa(len(buffer(responseBody))) + " bytes")
	setBuffer(responseBody, 0, uint32(size), text, length)
	return goOn
}

//go:wasmexport proxy_on_log
func onLog(id int32) { write(3, "the end of "+property("request\x00path")) }

//go:wasmexport proxy_on_delete
func onDelete(id int32) {
	delete(parent, id)
	delete(conf, id)
}

func main() {}
