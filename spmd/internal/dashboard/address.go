package dashboard

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// TokenVariable is an environment variable with the token of the page's address, for an address
// that stays the same over runs. Otherwise each run has a new one.
const TokenVariable = "LOCKSTEP_DASHBOARD_TOKEN"

// loopback is where the page is served if no host is named.
const loopback = "127.0.0.1"

// Address reads [HOST]:PORT. Without a host it is this machine's loopback; port 0 is a free one.
func Address(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || strconv.FormatUint(n, 10) != port ||
		strings.ContainsAny(host, " /@?#") {
		return "", fmt.Errorf("--dashboard %s: want [HOST]:PORT, such as :8080, or 0.0.0.0:8080 to be "+
			"reached from other machines", text)
	}
	if host == "" {
		host = loopback
	}
	return net.JoinHostPort(host, port), nil
}

// leastToken is the least number of characters of a token.
const leastToken = 16

// Token checks a given token, or makes one if given is empty.
func Token(given string) (string, error) {
	if given == "" {
		var b [16]byte
		if _, err := rand.Read(b[:]); err != nil {
			return "", err
		}
		return base64.RawURLEncoding.EncodeToString(b[:]), nil
	}
	const may = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	if len(given) < leastToken || strings.Trim(given, may) != "" {
		return "", fmt.Errorf("%s: want %d letters, digits, - and _, or more", TokenVariable, leastToken)
	}
	return given, nil
}
