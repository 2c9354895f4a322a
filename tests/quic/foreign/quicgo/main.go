// A QUIC peer of quic-go's that is nothing but streams of bytes: commands come by lines on standard input, what happens
// goes out by lines on standard output.
//
//	open N bidi|uni   a stream of ours, N below zero     opened N bidi|uni   the peer's, N is its id
//	send N HEX        bytes on it                        data N HEX
//	end N             nothing behind them                end N
//	reset N CODE      abandon sending                    reset N CODE
//	stop N CODE       ask the peer to stop sending       stopped N CODE
//	report            what the connection went through   report JSON
//	close CODE        end the connection                 gone WHY
//
// Before all that a listener says "port N", and everybody "ready" once the handshake is done.
package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "unsafe" // for linkname

	quic "github.com/lucas-clemente/quic-go"
	"github.com/lucas-clemente/quic-go/logging"
)

// A variable "to allow modifying it for testing purposes", says quic-go, in a package that only it may import.
//
//go:linkname keyUpdateInterval github.com/lucas-clemente/quic-go/internal/handshake.KeyUpdateInterval
var keyUpdateInterval uint64

// What a test asks about, counted by the connection's tracer.
type report struct {
	sync.Mutex
	logging.NullConnectionTracer
	Version      string `json:"version"`
	Negotiations int    `json:"negotiations"` // Version Negotiation packets that came
	Retries      int    `json:"retries"`
	Issued       int    `json:"issued"`     // NEW_CONNECTION_ID frames that came
	Retired      int    `json:"retired"`    // RETIRE_CONNECTION_ID frames that were sent
	Named        int    `json:"named"`      // ids that packets were sent to, once the handshake was done
	Challenged   int    `json:"challenged"` // PATH_CHALLENGE frames that came
	KeyUpdates   int    `json:"key_updates"`
	Lost         int    `json:"lost"` // packets of ours
	ids          map[string]bool
}

type tracer struct {
	logging.NullTracer
	seen *report
}

func (t tracer) TracerForConnection(context.Context, logging.Perspective, logging.ConnectionID) logging.ConnectionTracer {
	return t.seen
}

func (r *report) note(change func()) {
	r.Lock()
	defer r.Unlock()
	change()
}

func (r *report) NegotiatedVersion(chosen logging.VersionNumber, _, _ []logging.VersionNumber) {
	r.note(func() { r.Version = fmt.Sprintf("%#x", uint32(chosen)) })
}

func (r *report) ReceivedVersionNegotiationPacket(*logging.Header, []logging.VersionNumber) {
	r.note(func() { r.Negotiations++ })
}

func (r *report) ReceivedRetry(*logging.Header) { r.note(func() { r.Retries++ }) }

func (r *report) SentPacket(header *logging.ExtendedHeader, _ logging.ByteCount, _ *logging.AckFrame, frames []logging.Frame) {
	r.note(func() {
		if !header.IsLongHeader {
			r.ids[header.DestConnectionID.String()] = true
			r.Named = len(r.ids)
		}
		for _, frame := range frames {
			if _, is := frame.(*logging.RetireConnectionIDFrame); is {
				r.Retired++
			}
		}
	})
}

func (r *report) ReceivedPacket(_ *logging.ExtendedHeader, _ logging.ByteCount, frames []logging.Frame) {
	r.note(func() {
		for _, frame := range frames {
			switch frame.(type) {
			case *logging.NewConnectionIDFrame:
				r.Issued++
			case *logging.PathChallengeFrame:
				r.Challenged++
			}
		}
	})
}

func (r *report) LostPacket(logging.EncryptionLevel, logging.PacketNumber, logging.PacketLossReason) {
	r.note(func() { r.Lost++ })
}

func (r *report) UpdatedKey(logging.KeyPhase, bool) { r.note(func() { r.KeyUpdates++ }) }

// One end of the lines.
type output struct {
	sync.Mutex
	to *bufio.Writer
}

func (o *output) say(format string, arguments ...interface{}) {
	o.Lock()
	defer o.Unlock()
	fmt.Fprintf(o.to, format+"\n", arguments...)
	o.to.Flush()
}

// What one stream is asked to do waits here, so that a stream without credit holds up no other.
type channel struct {
	work chan func()
	send quic.SendStream
	read quic.ReceiveStream
}

type client struct {
	connection quic.Connection
	out        *output
	mutex      sync.Mutex
	channels   map[int64]*channel
}

func (c *client) add(number int64, send quic.SendStream, read quic.ReceiveStream) {
	made := &channel{make(chan func(), 1<<16), send, read}
	c.mutex.Lock()
	c.channels[number] = made
	c.mutex.Unlock()
	go func() {
		for work := range made.work {
			work()
		}
	}()
	if read != nil {
		go c.listen(number, read)
	}
	if send != nil {
		go func() {
			<-send.Context().Done()
			// a stream that was written to its end is done as well: only a write tells
			_, err := send.Write(nil)
			var stopped *quic.StreamError
			if errors.As(err, &stopped) {
				c.out.say("stopped %d %d", number, stopped.ErrorCode)
			}
		}()
	}
}

func (c *client) listen(number int64, read quic.ReceiveStream) {
	buffer := make([]byte, 1<<15)
	for {
		size, err := read.Read(buffer)
		if size > 0 {
			c.out.say("data %d %s", number, hex.EncodeToString(buffer[:size]))
		}
		if err == nil {
			continue
		}
		var reset *quic.StreamError
		if errors.As(err, &reset) {
			c.out.say("reset %d %d", number, reset.ErrorCode)
		} else if err.Error() == "EOF" {
			c.out.say("end %d", number)
		}
		return
	}
}

func (c *client) acceptBidirectional() {
	for {
		stream, err := c.connection.AcceptStream(context.Background())
		if err != nil {
			return
		}
		c.out.say("opened %d bidi", stream.StreamID())
		c.add(int64(stream.StreamID()), stream, stream)
	}
}

func (c *client) acceptUnidirectional() {
	for {
		stream, err := c.connection.AcceptUniStream(context.Background())
		if err != nil {
			return
		}
		c.out.say("opened %d uni", stream.StreamID())
		c.add(int64(stream.StreamID()), nil, stream)
	}
}

func (c *client) open(number int64, kind string) error {
	if kind == "uni" {
		stream, err := c.connection.OpenUniStream()
		if err == nil {
			c.add(number, stream, nil)
		}
		return err
	}
	stream, err := c.connection.OpenStream()
	if err == nil {
		c.add(number, stream, stream)
	}
	return err
}

func (c *client) obey(words []string) error {
	if words[0] == "close" {
		code, _ := strconv.ParseUint(words[1], 10, 62)
		return c.connection.CloseWithError(quic.ApplicationErrorCode(code), "")
	}
	number, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil {
		return err
	}
	if words[0] == "open" {
		return c.open(number, words[2])
	}
	c.mutex.Lock()
	found := c.channels[number]
	c.mutex.Unlock()
	if found == nil {
		return fmt.Errorf("no stream %d", number)
	}
	switch words[0] {
	case "send":
		data, err := hex.DecodeString(words[2])
		if err != nil {
			return err
		}
		found.work <- func() { found.send.Write(data) }
	case "end":
		found.work <- func() { found.send.Close() }
	case "reset":
		code, _ := strconv.ParseUint(words[2], 10, 62)
		found.work <- func() { found.send.CancelWrite(quic.StreamErrorCode(code)) }
	case "stop":
		code, _ := strconv.ParseUint(words[2], 10, 62)
		found.read.CancelRead(quic.StreamErrorCode(code))
	default:
		return fmt.Errorf("what is %q?", words[0])
	}
	return nil
}

func meet(address string, trust *tls.Config, config *quic.Config, out *output) (quic.Connection, error) {
	if address != "" {
		return quic.DialAddr(address, trust, config)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	trust.Certificates = []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}
	listener, err := quic.ListenAddr("127.0.0.1:0", trust, config)
	if err != nil {
		return nil, err
	}
	out.say("port %d", listener.Addr().(*net.UDPAddr).Port)
	return listener.Accept(context.Background())
}

func main() {
	address := flag.String("address", "", "HOST:PORT to dial; without it one connection is accepted on a port that is said")
	alpn := flag.String("alpn", "", "application protocol; none is offered without it")
	ids := flag.Int("ids", 0, "length of our connection ids; 0 is none")
	keys := flag.Uint64("keys", 0, "packets after which keys are updated")
	versions := flag.String("versions", "1", "QUIC versions in hex, the first one is tried first")
	first := flag.String("first", "", "bytes in hex that go out on stream 0 the moment the handshake is done")
	flag.Parse()
	out := &output{to: bufio.NewWriter(os.Stdout)}
	seen := &report{ids: map[string]bool{}}
	config := &quic.Config{
		ConnectionIDLength:   *ids,
		HandshakeIdleTimeout: 60 * time.Second,
		MaxIdleTimeout:       60 * time.Second,
		KeepAlivePeriod:      5 * time.Second,
		Tracer:               tracer{seen: seen},
	}
	for _, version := range strings.Split(*versions, ",") {
		number, err := strconv.ParseUint(version, 16, 32)
		if err != nil {
			panic(err)
		}
		config.Versions = append(config.Versions, quic.VersionNumber(number))
	}
	if *keys > 0 {
		keyUpdateInterval = *keys
	}
	trust := &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}
	if *alpn != "" {
		trust.NextProtos = []string{*alpn}
	}
	connection, err := meet(*address, trust, config, out)
	if err != nil {
		out.say("gone %v", err)
		return
	}
	c := &client{connection: connection, out: out, channels: map[int64]*channel{}}
	if *first != "" {
		for _, line := range []string{"open 0 bidi", "send 0 " + *first} {
			if err := c.obey(strings.Fields(line)); err != nil {
				panic(err)
			}
		}
	}
	out.say("ready")
	go c.acceptBidirectional()
	go c.acceptUnidirectional()
	go func() {
		<-connection.Context().Done()
		_, err := connection.AcceptStream(context.Background())
		out.say("gone %v", err)
	}()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if words[0] == "report" {
			seen.Lock()
			text, _ := json.Marshal(seen)
			seen.Unlock()
			out.say("report %s", text)
		} else if err := c.obey(words); err != nil {
			out.say("gone %s: %v", words[0], err)
		}
	}
	connection.CloseWithError(0, "")
}
