/// placeholder: written with the park protocol
#pragma once
