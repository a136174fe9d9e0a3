// The server's socket, for fuzz targets.
#pragma once

#include <string>

namespace tendon::fuzz {

// Sends the bytes over a new connection to a server of this process, says that no more comes, and reads to the end.
// Whatever they are, the server has to close the connection, go on, and answer the next client; a connection that stays
// open is a finding.
void talk_to_server(const std::string& bytes);

}  // namespace tendon::fuzz
