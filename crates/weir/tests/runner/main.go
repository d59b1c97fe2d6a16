// A runner of APISIX's external plugins, by the library for Go, whose plugin the tests drive by its configuration.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	pkgHTTP "github.com/apache/apisix-go-plugin-runner/pkg/http"
	"github.com/apache/apisix-go-plugin-runner/pkg/plugin"
	"github.com/apache/apisix-go-plugin-runner/pkg/runner"
)

func main() {
	fmt.Println("the runner is up")
	if err := plugin.RegisterPlugin(&driven{}); err != nil {
		panic(err)
	}
	runner.Run(runner.RunnerConfig{})
}

type driven struct{ plugin.DefaultPlugin }

type conf struct {
	Do   string
	Name string
}

func (*driven) Name() string { return "driven" }

func (*driven) ParseConf(in []byte) (interface{}, error) {
	var parsed conf
	err := json.Unmarshal(in, &parsed)
	return parsed, err
}

func (*driven) RequestFilter(given interface{}, w http.ResponseWriter, r pkgHTTP.Request) {
	c := given.(conf)
	switch c.Do {
	case "stop":
		w.Header().Set("X-Stopped", c.Name)
		w.WriteHeader(418)
		w.Write([]byte("stopped " + r.Method() + " " + string(r.Path())))
	case "rewrite":
		host, _ := r.Var("host")
		r.Header().Set("X-Runner", fmt.Sprint(r.SrcIP(), " ", r.Header().Get("X-In"), " ", r.Args().Get("a"), " ", string(host)))
		r.Header().Del("X-Gone")
		r.SetPath([]byte("/rewritten it"))
		r.Args().Set("b", "2 3")
		r.Args().Del("gone")
		r.RespHeader().Set("X-From-Runner", c.Name)
	case "body":
		body, err := r.Body()
		r.Header().Set("X-Body", fmt.Sprint(string(body), err))
	case "die":
		os.Exit(7)
	case "panic":
		panic("asked for")
	case "wrong":
		r.SetPath([]byte("no path"))
	}
}

func (*driven) ResponseFilter(given interface{}, w pkgHTTP.Response) {
	c := given.(conf)
	switch c.Do {
	case "headers":
		host, _ := w.Var("host")
		w.Header().Set("X-Runner", fmt.Sprint(c.Name, " ", w.StatusCode(), " ", w.Header().Get("X-In"), " ", string(host)))
		w.Header().Set("X-In", "out")
		w.Header().Del("X-Gone")
	case "status":
		w.WriteHeader(418)
	case "body":
		body, err := w.ReadBody()
		w.Write([]byte(fmt.Sprint("changed ", string(body), err)))
	case "die":
		os.Exit(7)
	case "wrong":
		w.WriteHeader(99)
	}
}
