// The real konnectivity client, agent and server, for tests and benchmarks against them.
//
//	peer server FLAGS...          the upstream server, its own flags
//	peer agent FLAGS...           the upstream agent, its own flags
//	peer client SOCKET HOST:PORT  the upstream client: stdin and stdout of one tunnel over SOCKET
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	agent "sigs.k8s.io/apiserver-network-proxy/cmd/agent/app"
	agentoptions "sigs.k8s.io/apiserver-network-proxy/cmd/agent/app/options"
	server "sigs.k8s.io/apiserver-network-proxy/cmd/server/app"
	serveroptions "sigs.k8s.io/apiserver-network-proxy/cmd/server/app/options"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/pkg/client"
)

func main() {
	var err error
	switch role := append(os.Args, "")[1]; role {
	case "server":
		options := serveroptions.NewProxyRunOptions()
		err = run(server.NewProxyCommand(&server.Proxy{}, options), options.Flags())
	case "agent":
		options := agentoptions.NewGrpcProxyAgentOptions()
		err = run(agent.NewAgentCommand(&agent.Agent{}, options), options.Flags())
	case "client":
		err = tunnel(os.Args[2], os.Args[3])
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run(command *cobra.Command, flags *pflag.FlagSet) error {
	command.Flags().AddFlagSet(flags)
	logging := flag.NewFlagSet("klog", flag.ExitOnError)
	klog.InitFlags(logging)
	logging.VisitAll(func(f *flag.Flag) {
		f.Name = strings.ReplaceAll(f.Name, "_", "-")
		command.Flags().AddGoFlag(f)
	})
	command.SetArgs(os.Args[2:])
	return command.Execute()
}

// tunnel ends when the remote has closed, or a second after stdin has ended and nothing came.
func tunnel(socket, address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	dialer := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	single, err := client.CreateSingleUseGrpcTunnelWithContext(ctx, context.Background(),
		"passthrough:///unix", grpc.WithContextDialer(dialer),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	conn, err := single.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() { _, err := io.Copy(os.Stdout, conn); received <- err }()
	if _, err = io.Copy(conn, os.Stdin); err != nil {
		return err
	}
	if os.Getenv("PEER_CLOSE") != "" { // write-then-close
		return conn.Close()
	}
	err = <-received
	conn.Close()
	return err
}
