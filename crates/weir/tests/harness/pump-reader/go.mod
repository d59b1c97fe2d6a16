module pump-reader

go 1.21

require gopkg.in/vmihailenco/msgpack.v2 v2.9.1

require (
	github.com/golang/protobuf v1.5.2 // indirect
	google.golang.org/appengine v1.6.8 // indirect
	google.golang.org/protobuf v1.26.0 // indirect
	gopkg.in/check.v1 v1.0.0-20201130134442-10cb98267c6c // indirect
)
