// Reads records of requests, a line of hexadecimal digits each, with the library of MessagePack that tyk-pump uses, into the
// fields that the Pump's documentation lists, and prints each as JSON. A record that does not fit ends it with an error.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"gopkg.in/vmihailenco/msgpack.v2"
)

type record struct {
	Method, Host, Path, RawPath                string
	ContentLength                              int64
	UserAgent                                  string
	Day                                        int
	Month                                      time.Month
	Year, Hour, ResponseCode                   int
	APIKey                                     string
	TimeStamp                                  time.Time
	APIVersion, APIName, APIID, OrgID, OauthID string
	RequestTime                                int64
	RawRequest, RawResponse, IPAddress         string
	Geo                                        struct {
		Country struct{ ISOCode string }
		City    struct {
			GeoNameID uint
			Names     map[string]string
		}
		Location struct {
			Latitude, Longitude float64
			TimeZone            string
		}
	}
	Network                  struct{ OpenConnections, ClosedConnection, BytesIn, BytesOut int64 }
	Latency                  struct{ Total, Upstream, Gateway int64 }
	Tags                     []string
	Alias                    string
	TrackPath                bool
	ExpireAt                 time.Time
	OriginalPath, ListenPath string
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var read record
		bytes, err := hex.DecodeString(lines.Text())
		if err == nil {
			err = msgpack.Unmarshal(bytes, &read)
		}
		if err == nil && (read.Method == "" || read.TimeStamp.Year() < 2020 || read.ExpireAt.Before(read.TimeStamp)) {
			err = fmt.Errorf("fields are missing: %+v", read)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		text, _ := json.Marshal(read)
		fmt.Println(string(text))
	}
}
